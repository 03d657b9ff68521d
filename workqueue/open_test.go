package workqueue_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/settle"
	"github.com/tranchehq/tranche/workqueue/start"
)

// Full blocks are worked on while the run is open, the rest from the seal on, and the run completes once.
func TestAnOpenRunIsWorkedOnBlockByBlock(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.OpenRun(func(r *start.OpenRequest) { r.MaxFailed = "1%" })
	all := storetest.Names(17_000)
	if added := b.Add(run, all[:8000]); added.First != 0 || added.Items != 8000 || added.Total != 8000 {
		t.Errorf("the first add: %+v", added)
	}
	testenv.Same(t, len(b.Claim(run, 1)), 0, "slices were claimed of a block that is not full")
	if added := b.Add(run, all[8000:]); added.First != 8000 || added.Total != 17_000 {
		t.Errorf("the second add: %+v", added)
	}
	b.WantTally(run, storetest.Tally{Ready: 16_384})
	b.Finish(run)
	b.WantTally(run, storetest.Tally{Done: 16_384})
	b.WantState(run, "running", 1)
	b.Check()
	testenv.Same(t, b.Number(`SELECT count(failed_limit) FROM batchrun WHERE id = $1`, run), 0,
		"a part of the items limits the run before it is known how many there are")
	if sealed := b.Seal(run); sealed.Items != 17_000 || sealed.Already || sealed.Completed {
		t.Errorf("the seal: %+v", sealed)
	}
	testenv.Same(t, b.Number(`SELECT failed_limit FROM batchrun WHERE id = $1`, run), 170,
		"the limit of failed items is")
	b.Finish(run)
	b.WantState(run, "completed", 1)
	b.WantCompletions(run, 1)
	b.Check()
	if sealed := b.Seal(run); !sealed.Already || sealed.Items != 17_000 {
		t.Errorf("the second seal: %+v", sealed)
	}
}

func TestOpeningIsIdempotent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := start.OpenRequest{LoadRequest: storetest.Request(), SealWithin: time.Hour}
	req.IdempotencyKey, req.Name = "k", "one"
	one := testenv.Must(start.New(b.Store).OpenRun(t.Context(), req))(t)
	req.Name = "two"
	two, err := start.New(b.Store).OpenRun(t.Context(), req)
	if err != nil || two.Run != one.Run || two.Name != "one" || !two.Existing ||
		!two.SealDeadline.Equal(one.SealDeadline) {
		t.Errorf("opened again: %+v, %v", two, err)
	}
	load := req.LoadRequest
	req.OnOverdue, req.OnDuplicate, req.SealWithin = start.OverdueSeal, start.DuplicateSkip, 2*time.Hour
	_, err = start.New(b.Store).OpenRun(t.Context(), req)
	testenv.Says(t, err, `on_duplicate ("error" then, "skip" now); on_overdue ("report" then, "seal" now); `+
		`seal_within ("1h0m0s" then, "2h0m0s" now)`, "the key with other settings")
	_, err = b.TryLoad(load, storetest.Keys("a"))
	testenv.Says(t, err, "was opened", "a load with the key of an open run")
}

func TestAddsAndDuplicates(t *testing.T) {
	t.Parallel()
	b := setup(t)
	strict := b.OpenRun(nil)
	b.Add(strict, []string{"a", "b"})
	for want, items := range map[string][]string{
		`line 3: key "b" is the key of item 2 already`:     {"c", "b"},
		`line 33001: key "C7" is on line 9 already; remov`: append(storetest.Names(32_999), "C7"),
	} {
		_, err := start.New(b.Store).Add(t.Context(), storetest.AddRequest(strict, "", items))
		testenv.Says(t, testenv.As[*workqueue.DuplicateKeyError](t, err, "%s", want), want, "the add")
	}
	if added := b.Add(strict, []string{"c"}); added.First != 2 || added.Total != 3 {
		t.Errorf("after adds that were refused: %+v", added)
	}
	lax := b.OpenRun(func(r *start.OpenRequest) { r.OnDuplicate = start.DuplicateSkip })
	b.Add(lax, []string{"a", "b", "a"})
	if added := b.Add(lax, []string{"b", "c"}); added.First != 2 || added.Items != 1 || added.Skipped != 1 {
		t.Errorf("duplicates that are skipped: %+v", added)
	}
	testenv.Same(t, b.Number(`SELECT skipped FROM batchrun WHERE id = $1`, lax), 2, "duplicates are counted")
	free := b.OpenRun(func(r *start.OpenRequest) { r.OnDuplicate = start.DuplicateAllow })
	b.Add(free, []string{"a", "a"})
	testenv.Same(t, b.Add(free, []string{"a"}).Total, 3, "duplicates that are allowed")
	b.Check()
}

// An add that ends early in the middle, by its source or with its connection, leaves nothing.
func TestAnAddIsAllOrNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.OpenRun(nil)
	broken := errors.New("the source broke")
	cut := false
	for name, fault := range map[string]func() error{
		"source": func() error { return broken },
		"killed": func() error {
			b.Exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity
				WHERE datname = current_database() AND state = 'idle in transaction'`)
			cut = true
			return nil
		},
	} {
		req := storetest.AddRequest(run, "k", storetest.Names(storetest.Several))
		req.Items = func() (func(*start.LoadItem) error, error) {
			n, next := 0, storetest.Keys(storetest.Names(storetest.Several)...)
			return func(item *start.LoadItem) error {
				if n++; n == storetest.Several-1 {
					if err := fault(); err != nil {
						return err
					}
				}
				return next(item)
			}, nil
		}
		if _, err := start.New(b.Store).Add(t.Context(), req); err == nil || name == "source" && !errors.Is(err, broken) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !cut {
		t.Error("no connection was cut")
	}
	testenv.Same(t, b.Number(`SELECT count(*) FROM work_queue WHERE run_id = $1`, run), 0, "items are left")
	endless, n := storetest.AddRequest(run, "", nil), 0
	endless.Items = func() (func(*start.LoadItem) error, error) {
		return func(item *start.LoadItem) error {
			n++
			item.Key, item.Payload = strconv.Itoa(n), bytes.Repeat([]byte("1"), 16<<20)
			return nil
		}, nil
	}
	_, err := start.New(b.Store).Add(t.Context(), endless)
	_ = testenv.As[*workqueue.TooLargeError](t, err, "an add without an end")
	testenv.Same(t, b.Add(run, storetest.Names(3)).Total, 3, "afterwards")
	b.Check()
}

// A run that no one adds anything to completes with its seal. What was sealed or cancelled is not a load that was given
// up, whatever becomes of its node.
func TestAnOpenRunIsNoAbandonedLoad(t *testing.T) {
	t.Parallel()
	b := setup(t)
	empty, open, cancelled := b.OpenRun(nil), b.OpenRun(nil), b.OpenRun(nil)
	if sealed := b.Seal(empty); !sealed.Completed || sealed.Items != 0 {
		t.Errorf("the seal of a run without items: %+v", sealed)
	}
	b.WantState(empty, "completed", 1)
	b.WantCompletions(empty, 1)
	b.Add(open, storetest.Names(2))
	b.Add(cancelled, storetest.Names(9000))
	testenv.Must(control.New(b.Store).Cancel(t.Context(), control.Control{Run: cancelled, Actor: "ann"}))(t)
	_, err := start.New(b.Store).Add(t.Context(), storetest.AddRequest(cancelled, "", []string{"x"}))
	_ = testenv.As[*workqueue.StateError](t, err, "an add to a cancelled run")
	b.Expire(b.Session)
	b.Session = b.Open()
	if cleared, err := start.New(b.Store).ClearAbandonedLoads(t.Context(), b.Lead()); err != nil || len(cleared) > 0 {
		t.Errorf("%d runs were cleared, %v", len(cleared), err)
	}
	if sealed, err := start.New(b.Store).ClearLoad(t.Context(), open); err != nil || !sealed {
		t.Errorf("the load of an open run was cleared: %v", err)
	}
	b.Check()
}

func TestOverdueRuns(t *testing.T) {
	t.Parallel()
	b := setup(t)
	within := func(what start.OnOverdue) func(*start.OpenRequest) {
		return func(r *start.OpenRequest) { r.OnOverdue = what }
	}
	late := map[workqueue.RunID]start.OnOverdue{}
	for _, what := range []start.OnOverdue{start.OverdueReport, start.OverdueSeal, start.OverdueCancel} {
		late[b.OpenRun(within(what))] = what
	}
	b.OpenRun(nil) // in time
	lease := b.Lead()
	testenv.Same(t, len(testenv.Must(start.New(b.Store).ReportOverdue(t.Context(), lease))(t)), 0, "before the time")
	b.Exec(`UPDATE batchrun SET seal_deadline = tranche_now() WHERE id = ANY($1)`,
		slices.Collect(maps.Keys(late)))
	due := testenv.Must(start.New(b.Store).ReportOverdue(t.Context(), lease))(t)
	testenv.MustSame(t, len(due), 3, "overdue")
	for _, o := range due {
		if !o.Reported || o.OnOverdue != late[o.Run] {
			t.Errorf("%+v; want %s", o, late[o.Run])
		}
	}
	testenv.Same(t, b.Number(`SELECT count(*) FROM run_event WHERE kind = 'overdue'`), 3, "events")
	due = testenv.Must(start.New(b.Store).ReportOverdue(t.Context(), lease))(t)
	if len(due) != 2 || due[0].Reported || due[1].Reported {
		t.Errorf("the second look: %v; want the two that are to be ended", due)
	}
	for run, what := range late {
		if what == start.OverdueReport {
			b.Add(run, storetest.Names(1)) // it takes items anyway
			b.Seal(run)
		}
	}
	b.Check()
}

// An open run ends when it is overdue and no one has done anything with it for a week; what keeps it keeps only that.
func TestAnAbandonedOpenRunEnds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.Lead()
	left, added, paused, fresh := b.OpenRun(nil), b.OpenRun(nil), b.OpenRun(nil), b.OpenRun(nil)
	worked := b.OpenRun(nil)
	b.Add(worked, storetest.Names(8192)) // a block, which begins
	b.PauseRun(paused)
	b.Exec(`UPDATE batchrun SET seal_deadline = tranche_now()`)
	testenv.MustSame(t, len(testenv.Must(start.New(b.Store).ReportOverdue(t.Context(), lease))(t)), 5,
		"runs that are overdue")
	b.Exec(`UPDATE batchrun SET overdue_at = overdue_at - interval '8 days' WHERE id <> $1`, fresh)
	testenv.Same(t, len(testenv.Must(start.New(b.Store).ReportOverdue(t.Context(), lease))(t)), 0,
		"all were opened just now")
	testenv.Rewrite(t, b.Pool, `UPDATE audit_log SET at = at - interval '8 days'`)
	b.Add(added, storetest.Names(1))
	b.Record(storetest.Whole(b.One(worked)))
	due, err := start.New(b.Store).ReportOverdue(t.Context(), lease)
	if err != nil || len(due) != 1 || due[0].Run != left || !due[0].Abandoned || due[0].Reported ||
		due[0].OnOverdue != start.OverdueCancel {
		t.Errorf("%+v, %v; want run %s alone, to be cancelled", due, err, left)
	}
	b.Check()
}

// Adds, seals, cancels, claims and replies continue side by side. Whoever ends the run, no item is lost, none is there
// twice, and the run ends once.
func TestOpenRunRaces(t *testing.T) {
	t.Parallel()
	for _, end := range []string{"seal", "cancel", "both"} {
		t.Run(end, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run := b.OpenRun(nil)
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
						done, err := start.New(b.Store).Add(ctx, storetest.AddRequest(run, "", items))
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
			testenv.Until(t, 2*time.Minute, "the run ends", func() bool {
				state, _ := b.State(run)
				return state == "completed" || state == "cancelled"
			})
			stop()
			work.Wait()
			testenv.Same(t, b.Number(`SELECT items FROM batchrun WHERE id = $1`, run), added, "items of the run")
			testenv.Same(t, b.Number(`SELECT count(*) FROM run_event WHERE run_id = $1
				AND kind IN ('completed', 'cancelled')`, run), 1, "ends of the run")
			b.Check()
		})
	}
}

func (b *bench) endRun(ctx context.Context, run workqueue.RunID, how string) {
	var ends sync.WaitGroup
	if how != "cancel" {
		ends.Go(func() {
			_, err := start.New(b.Store).SealRun(ctx, start.SealRequest{Run: run})
			b.mayBeOver("seal", err)
		})
	}
	if how != "seal" {
		ends.Go(func() {
			_, err := control.New(b.Store).Cancel(ctx, control.Control{Run: run})
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

func (b *bench) workOn(ctx context.Context, run workqueue.RunID) {
	for ctx.Err() == nil {
		claimed, err := dispatch.New(b.Store).Claim(ctx, b.ClaimRequest(run, 4))
		if err != nil && ctx.Err() == nil && !errors.Is(err, workqueue.ErrBusy) {
			b.Errorf("claim: %v", err)
		}
		if _, err := settle.New(b.Store).Record(ctx, storetest.Wholes(claimed.Slices)); err != nil && ctx.Err() == nil {
			b.Errorf("record: %v", err)
		}
	}
}
