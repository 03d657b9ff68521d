package workqueue_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/settle"
	"github.com/tranchehq/tranche/workqueue/start"
)

// openRun opens a run of chunks of 1000.
func (b *bench) openRun(change func(*start.OpenRequest)) workqueue.RunID {
	b.Helper()
	req := start.OpenRequest{LoadRequest: chunked(1000)}
	req.Session = b.session
	if change != nil {
		change(&req)
	}
	opened, err := start.New(b.store).OpenRun(b.Context(), req)
	if err != nil {
		b.Fatal(err)
	}
	return opened.Run
}

// list is an add of the keys given.
func list(run workqueue.RunID, key string, items []string) start.AddRequest {
	return start.AddRequest{Run: run, Key: key, Digest: []byte(fmt.Sprint(items)), Actor: "ann",
		Items: func() (func(*start.LoadItem) error, error) { return keys(items...), nil }}
}

func (b *bench) add(run workqueue.RunID, items []string) start.Added {
	b.Helper()
	added, err := start.New(b.store).Add(b.Context(), list(run, "", items))
	if err != nil {
		b.Fatal(err)
	}
	return added
}

func (b *bench) seal(run workqueue.RunID) start.Sealed {
	b.Helper()
	sealed, err := start.New(b.store).SealRun(b.Context(), start.SealRequest{Run: run, Actor: "ann"})
	if err != nil {
		b.Fatal(err)
	}
	return sealed
}

// Full blocks are worked on while the run is open, the rest from the seal on, and the run completes once.
func TestAnOpenRunIsWorkedOnBlockByBlock(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.openRun(func(r *start.OpenRequest) { r.MaxFailed = "1%" })
	all := names(17_000)
	if added := b.add(run, all[:8000]); added.First != 0 || added.Items != 8000 || added.Total != 8000 {
		t.Errorf("the first add: %+v", added)
	}
	if got := b.claim(run, 1); len(got) != 0 {
		t.Errorf("%d items were claimed of a block that is not full", got[0].Mask.Count())
	}
	if added := b.add(run, all[8000:]); added.First != 8000 || added.Total != 17_000 {
		t.Errorf("the second add: %+v", added)
	}
	b.wantTally(run, tally{ready: 16_384})
	b.finish(run)
	b.wantTally(run, tally{done: 16_384})
	b.wantState(run, "running", 1)
	b.check()
	if n := b.number(`SELECT count(failed_limit) FROM batchrun WHERE id = $1`, run); n != 0 {
		t.Error("a part of the items limits the run before it is known how many there are")
	}
	if sealed := b.seal(run); sealed.Items != 17_000 || sealed.Already || sealed.Completed {
		t.Errorf("the seal: %+v", sealed)
	}
	if n := b.number(`SELECT failed_limit FROM batchrun WHERE id = $1`, run); n != 170 {
		t.Errorf("the limit of failed items is %d; want 170", n)
	}
	b.finish(run)
	b.wantState(run, "completed", 1)
	b.wantCompletions(run, 1)
	b.check()
	if sealed := b.seal(run); !sealed.Already || sealed.Items != 17_000 {
		t.Errorf("the second seal: %+v", sealed)
	}
}

// Every step of a plan gets its blocks, and those that need others wait.
func TestAnOpenRunOfSeveralSteps(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.openRun(func(r *start.OpenRequest) {
		second := r.Steps[0]
		second.Name, second.Needs, second.Inputs = "second", []int{0}, []int{0}
		r.Steps = append(r.Steps, second)
	})
	b.add(run, names(9000))
	b.seal(run)
	for step, want := range []int{9000, 0} {
		n := b.number(`SELECT sum(bit_count(ready)) FROM work_block WHERE run_id = $1 AND step = $2`, run, step)
		if n != want {
			t.Errorf("%d items of step %d are ready; want %d", n, step, want)
		}
	}
	if n := b.number(`SELECT count(*) FROM work_block WHERE run_id = $1 AND payload_bytes = 2 * size`, run); n != 4 {
		t.Errorf("%d blocks with the bytes of their payloads; want 4", n)
	}
}

// What fails the seal, or the add, leaves the run open, and an answer that was lost can be asked for again.
func TestAddsAndSealsAreIdempotent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	run := b.openRun(nil)
	first, err := start.New(b.store).Add(ctx, list(run, "monday", names(3)))
	if err != nil || first.Items != 3 || first.Existing {
		t.Fatalf("%+v, %v", first, err)
	}
	_, err = start.New(b.store).Add(ctx, list(run, "monday", []string{"x"}))
	if _, ok := errors.AsType[*start.AddConflictError](err); !ok {
		t.Errorf("other items with the same key: %v", err)
	}
	seven := int64(7)
	_, err = start.New(b.store).SealRun(ctx, start.SealRequest{Run: run, Expect: &seven})
	if e, ok := errors.AsType[*start.ExpectError](err); !ok || e.Items != 3 || e.Want != 7 || e.Sealed {
		t.Errorf("a seal that expects others: %v", err)
	}
	b.wantState(run, "running", 1)
	b.seal(run)
	again, err := start.New(b.store).Add(ctx, list(run, "monday", names(3)))
	if err != nil || !again.Existing || again.Items != 3 || again.First != 0 || again.Total != 3 {
		t.Errorf("the same add after the seal: %+v, %v", again, err)
	}
	for what, err := range map[string]error{
		"an add after the seal": second(start.New(b.store).Add(ctx, list(run, "", []string{"x"}))),
		"an add to a run that was loaded whole": second(start.New(b.store).Add(ctx,
			list(b.load(request(), 1), "", []string{"x"}))),
		"a seal of such a run": second(start.New(b.store).SealRun(ctx, start.SealRequest{Run: b.load(request(), 1)})),
	} {
		if _, ok := errors.AsType[*workqueue.StateError](err); !ok {
			t.Errorf("%s: %v; want a StateError", what, err)
		}
	}
	_, err = start.New(b.store).SealRun(ctx, start.SealRequest{Run: run, Expect: &seven})
	if e, ok := errors.AsType[*start.ExpectError](err); !ok || !e.Sealed {
		t.Errorf("a seal that expects others, after the seal: %v", err)
	}
	if _, err := start.New(b.store).Add(ctx, list(workqueue.NewRunID(), "", names(1))); !errors.Is(err,
		workqueue.ErrNotFound) {
		t.Errorf("an add to a run that is not there: %v", err)
	}
	b.check()
}

func second[T any](_ T, err error) error { return err }

func TestOpeningIsIdempotent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := start.OpenRequest{LoadRequest: request(), SealWithin: time.Hour}
	req.IdempotencyKey = "k"
	one, err := start.New(b.store).OpenRun(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	two, err := start.New(b.store).OpenRun(t.Context(), req)
	if err != nil || two.Run != one.Run || !two.Existing || !two.SealBy.Equal(one.SealBy) {
		t.Errorf("opened again: %+v, %v", two, err)
	}
	load := req.LoadRequest
	if _, err := b.tryLoad(load, keys("a")); err == nil || !strings.Contains(err.Error(), "was opened") {
		t.Errorf("a load with the key of an open run: %v", err)
	}
	req.IdempotencyKey = ""
	for name, change := range map[string]func(*start.OpenRequest){
		"canary":     func(r *start.OpenRequest) { r.Canary = 1 },
		"on overdue": func(r *start.OpenRequest) { r.OnOverdue = "explode" },
		"within":     func(r *start.OpenRequest) { r.SealWithin = -time.Second },
	} {
		bad := req
		change(&bad)
		if _, err := start.New(b.store).OpenRun(t.Context(), bad); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAddsAndDuplicates(t *testing.T) {
	t.Parallel()
	b := setup(t)
	strict := b.openRun(nil)
	b.add(strict, []string{"a", "b"})
	for want, items := range map[string][]string{
		`line 3: key "b" is the key of item 2 already`:         {"c", "b"},
		`line 4: key "c" stands on line 2 already`:             {"c", "d", "c"},
		`line 35001: key "C7" stands on line 9 already; remov`: append(names(34_999), "C7"),
	} {
		_, err := start.New(b.store).Add(t.Context(), list(strict, "", items))
		if _, ok := errors.AsType[*workqueue.DuplicateKeyError](err); !ok || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s", err, want)
		}
	}
	if added := b.add(strict, []string{"c"}); added.First != 2 || added.Total != 3 {
		t.Errorf("after adds that were refused: %+v", added)
	}
	lax := b.openRun(func(r *start.OpenRequest) { r.OnDuplicate = start.DuplicateSkip })
	b.add(lax, []string{"a", "b", "a"})
	if added := b.add(lax, []string{"b", "c"}); added.First != 2 || added.Items != 1 || added.Skipped != 1 {
		t.Errorf("duplicates that are skipped: %+v", added)
	}
	if n := b.number(`SELECT skipped FROM batchrun WHERE id = $1`, lax); n != 2 {
		t.Errorf("%d duplicates are counted; want 2", n)
	}
	free := b.openRun(func(r *start.OpenRequest) { r.OnDuplicate = start.DuplicateAllow })
	b.add(free, []string{"a", "a"})
	if added := b.add(free, []string{"a"}); added.Total != 3 {
		t.Errorf("duplicates that are allowed: %+v", added)
	}
	b.check()
}

// An add that breaks off in the middle, by its source or with its connection, leaves nothing.
func TestAnAddIsAllOrNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.openRun(nil)
	broken := errors.New("the source broke")
	cut := false
	for name, fault := range map[string]func() error{
		"source": func() error { return broken },
		"killed": func() error {
			b.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE datname = current_database() AND state = 'idle in transaction'`)
			cut = true
			return nil
		},
	} {
		req := list(run, "k", names(several))
		req.Items = func() (func(*start.LoadItem) error, error) {
			n, next := 0, keys(names(several)...)
			return func(item *start.LoadItem) error {
				if n++; n == several-1 {
					if err := fault(); err != nil {
						return err
					}
				}
				return next(item)
			}, nil
		}
		if _, err := start.New(b.store).Add(t.Context(), req); err == nil || name == "source" && !errors.Is(err, broken) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !cut {
		t.Error("no connection was cut")
	}
	if left := b.number(`SELECT count(*) FROM work_queue WHERE run_id = $1`, run); left != 0 {
		t.Errorf("%d items are left", left)
	}
	endless, n := list(run, "", nil), 0
	endless.Items = func() (func(*start.LoadItem) error, error) {
		return func(item *start.LoadItem) error {
			n++
			item.Key, item.Payload = strconv.Itoa(n), bytes.Repeat([]byte("1"), 16<<20)
			return nil
		}, nil
	}
	_, err := start.New(b.store).Add(t.Context(), endless)
	if _, ok := errors.AsType[*start.AddTooLargeError](err); !ok {
		t.Errorf("an add without an end: %v", err)
	}
	if added := b.add(run, names(3)); added.Total != 3 {
		t.Errorf("afterwards: %+v", added)
	}
	b.check()
}

// A run that nobody adds anything to completes with its seal. What was sealed or cancelled is no load that was given
// up, whatever becomes of its node.
func TestAnOpenRunIsNoAbandonedLoad(t *testing.T) {
	t.Parallel()
	b := setup(t)
	empty, open, cancelled := b.openRun(nil), b.openRun(nil), b.openRun(nil)
	if sealed := b.seal(empty); !sealed.Completed || sealed.Items != 0 {
		t.Errorf("the seal of a run without items: %+v", sealed)
	}
	b.wantState(empty, "completed", 1)
	b.wantCompletions(empty, 1)
	b.add(open, names(2))
	b.add(cancelled, names(9000))
	if _, err := control.New(b.store).Cancel(t.Context(), control.Control{Run: cancelled, Actor: "ann"}); err != nil {
		t.Fatal(err)
	}
	_, err := start.New(b.store).Add(t.Context(), list(cancelled, "", []string{"x"}))
	if _, ok := errors.AsType[*workqueue.StateError](err); !ok {
		t.Errorf("an add to a cancelled run: %v", err)
	}
	b.expire(b.session)
	b.session = b.open()
	if cleared, err := start.New(b.store).ClearAbandonedLoads(t.Context(), b.lead()); err != nil || len(cleared) > 0 {
		t.Errorf("%d runs were cleared, %v", len(cleared), err)
	}
	if sealed, err := start.New(b.store).ClearLoad(t.Context(), open); err != nil || !sealed {
		t.Errorf("the load of an open run was cleared: %v", err)
	}
	b.check()
}

func TestOverdueRuns(t *testing.T) {
	t.Parallel()
	b := setup(t)
	within := func(what start.OnOverdue) func(*start.OpenRequest) {
		return func(r *start.OpenRequest) { r.OnOverdue = what }
	}
	late := map[workqueue.RunID]start.OnOverdue{}
	for _, what := range []start.OnOverdue{start.OverdueReport, start.OverdueSeal, start.OverdueCancel} {
		late[b.openRun(within(what))] = what
	}
	b.openRun(nil) // in time
	lease := b.lead()
	if due, err := start.New(b.store).ReportOverdue(t.Context(), lease); err != nil || len(due) != 0 {
		t.Errorf("before the time: %v, %v", due, err)
	}
	b.exec(`UPDATE batchrun SET seal_by = clock_timestamp() WHERE id = ANY($1)`, mapKeys(late))
	due, err := start.New(b.store).ReportOverdue(t.Context(), lease)
	if err != nil || len(due) != 3 {
		t.Fatalf("%v, %v; want 3 runs", due, err)
	}
	for _, o := range due {
		if !o.Reported || o.OnOverdue != late[o.Run] {
			t.Errorf("%+v; want %s", o, late[o.Run])
		}
	}
	if n := b.number(`SELECT count(*) FROM run_event WHERE kind = 'overdue'`); n != 3 {
		t.Errorf("%d events; want 3", n)
	}
	due, err = start.New(b.store).ReportOverdue(t.Context(), lease)
	if err != nil || len(due) != 2 || due[0].Reported || due[1].Reported {
		t.Errorf("the second look: %v, %v; want the two that are to be ended", due, err)
	}
	for run, what := range late {
		if what == start.OverdueReport {
			b.add(run, names(1)) // it takes items all the same
			b.seal(run)
		}
	}
	b.check()
}

// An open run ends when it is overdue and nobody has done anything with it for a week; what keeps it keeps only that.
func TestAnAbandonedOpenRunEnds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.lead()
	left, added, paused, fresh := b.openRun(nil), b.openRun(nil), b.openRun(nil), b.openRun(nil)
	worked := b.openRun(nil)
	b.add(worked, names(8192)) // a block, which begins
	b.pauseRun(paused)
	b.exec(`UPDATE batchrun SET seal_by = clock_timestamp()`)
	if due, err := start.New(b.store).ReportOverdue(t.Context(), lease); err != nil || len(due) != 5 {
		t.Fatal(due, err)
	}
	b.exec(`UPDATE batchrun SET overdue_at = overdue_at - interval '8 days' WHERE id <> $1`, fresh)
	if due, err := start.New(b.store).ReportOverdue(t.Context(), lease); err != nil || len(due) != 0 {
		t.Errorf("%+v, %v; all were opened just now", due, err)
	}
	testenv.Rewrite(t, b.pool, `UPDATE audit_log SET at = at - interval '8 days'`)
	b.add(added, names(1))
	b.record(whole(b.one(worked)))
	due, err := start.New(b.store).ReportOverdue(t.Context(), lease)
	if err != nil || len(due) != 1 || due[0].Run != left || !due[0].Abandoned || due[0].Reported ||
		due[0].OnOverdue != start.OverdueCancel {
		t.Errorf("%+v, %v; want run %s alone, to be cancelled", due, err, left)
	}
	b.check()
}

func mapKeys[K comparable, V any](m map[K]V) (all []K) {
	for k := range m {
		all = append(all, k)
	}
	return all
}

// Adds, seals, cancels, claims and replies go on side by side. Whoever ends the run, no item is lost, none is there
// twice, and the run ends once.
func TestOpenRunRaces(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"seal", "cancel", "both"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run := b.openRun(nil)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			var work, adds sync.WaitGroup
			for range 2 {
				work.Go(func() { b.workOn(ctx, run) })
			}
			var mu sync.Mutex
			added := 0
			for i := range 4 {
				adds.Go(func() {
					for j := range 6 {
						items := make([]string, 900)
						for k := range items {
							items[k] = fmt.Sprintf("%d-%d-%d", i, j, k)
						}
						done, err := start.New(b.store).Add(ctx, list(run, "", items))
						if _, over := errors.AsType[*workqueue.StateError](err); err != nil && !over {
							t.Errorf("add: %v", err)
						}
						mu.Lock()
						added += int(done.Items)
						mu.Unlock()
						if i == 0 && j == 3 {
							b.endRun(ctx, run, end)
						}
					}
				})
			}
			adds.Wait()
			b.awaitEnd(run)
			stop()
			work.Wait()
			if n := b.number(`SELECT items FROM batchrun WHERE id = $1`, run); n != added {
				t.Errorf("the run has %d items, and %d were added", n, added)
			}
			if n := b.number(`SELECT count(*) FROM run_event WHERE run_id = $1 AND kind IN ('completed', 'cancelled')`,
				run); n != 1 {
				t.Errorf("the run ended %d times", n)
			}
			b.check()
		})
	}
}

// endRun seals or cancels a run, or both at once.
func (b *bench) endRun(ctx context.Context, run workqueue.RunID, how string) {
	var ends sync.WaitGroup
	if how != "cancel" {
		ends.Go(func() {
			_, err := start.New(b.store).SealRun(ctx, start.SealRequest{Run: run})
			b.mayBeOver("seal", err)
		})
	}
	if how != "seal" {
		ends.Go(func() {
			_, err := control.New(b.store).Cancel(ctx, control.Control{Run: run})
			b.mayBeOver("cancel", err)
		})
	}
	ends.Wait()
}

func (b *bench) mayBeOver(what string, err error) {
	if _, over := errors.AsType[*workqueue.StateError](err); err != nil && !over {
		b.Errorf("%s: %v", what, err)
	}
}

// workOn answers whatever can be claimed.
func (b *bench) workOn(ctx context.Context, run workqueue.RunID) {
	for ctx.Err() == nil {
		claimed, err := dispatch.New(b.store).Claim(ctx, b.claimRequest(run, 4))
		if err != nil && ctx.Err() == nil && !errors.Is(err, workqueue.ErrBusy) {
			b.Errorf("claim: %v", err)
		}
		var answers []settle.Answer
		for _, s := range claimed.Slices {
			answers = append(answers, whole(s))
		}
		if _, err := settle.New(b.store).Record(ctx, answers); err != nil && ctx.Err() == nil {
			b.Errorf("record: %v", err)
		}
	}
}

func (b *bench) awaitEnd(run workqueue.RunID) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 30*time.Second)
	defer cancel()
	for state := ""; state != "completed" && state != "cancelled"; state, _ = b.state(run) {
		if ctx.Err() != nil {
			b.Fatalf("the run is still %s", state)
		}
	}
}
