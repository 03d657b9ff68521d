package workqueue_test

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// wish is what the operator ann wants of a run.
func wish(run workqueue.RunID, reason string) control.Control {
	return control.Control{Run: run, Reason: reason, Actor: "ann"}
}

func (b *bench) pauseRun(run workqueue.RunID) control.Controlled {
	b.Helper()
	out, err := control.New(b.store).Pause(b.Context(), wish(run, "the service is sick"))
	if err != nil {
		b.Fatal(err)
	}
	return out
}

func (b *bench) resume(run workqueue.RunID) {
	b.Helper()
	if _, err := control.New(b.store).Resume(b.Context(), wish(run, ""), nil); err != nil {
		b.Fatal(err)
	}
}

func (b *bench) set(c control.RunChange) control.RunChanged {
	b.Helper()
	c.Actor = "ann"
	out, err := control.New(b.store).SetRun(b.Context(), c)
	if err != nil {
		b.Fatal(err)
	}
	return out
}

func (b *bench) threshold(run workqueue.RunID, maxFailed string) {
	b.Helper()
	b.set(control.RunChange{Run: run, MaxFailed: &maxFailed})
}

// checkThreshold fails the test unless the check ends as wanted.
func (b *bench) checkThreshold(run workqueue.RunID, want bool) {
	b.Helper()
	if held, err := control.New(b.store).CheckThreshold(b.Context(), run); err != nil || held != want {
		b.Errorf("the threshold held the run: %v, %v; want %v", held, err, want)
	}
}

// wantHold compares a run's hold: "" or "kind by whom: why".
func (b *bench) wantHold(run workqueue.RunID, want string) {
	b.Helper()
	var got string
	err := b.pool.QueryRow(b.Context(), `SELECT coalesce(hold || ' by ' || held_by || ': ' || hold_detail, '')
		FROM batchrun WHERE id = $1`, run).Scan(&got)
	if err != nil {
		b.Fatal(err)
	}
	if got != want {
		b.Errorf("the run's hold is %q; want %q", got, want)
	}
}

// actions lists what the audit log has of a run: "pause by ann".
func (b *bench) actions(run workqueue.RunID) []string {
	b.Helper()
	var all []string
	err := b.pool.QueryRow(b.Context(), `SELECT coalesce(array_agg(action || ' by ' || actor ORDER BY id), '{}')
		FROM audit_log WHERE run_id = $1`, run).Scan(&all)
	if err != nil {
		b.Fatal(err)
	}
	return all
}

// events lists the kinds of a run's events.
func (b *bench) events(run workqueue.RunID) []string {
	b.Helper()
	var all []string
	err := b.pool.QueryRow(b.Context(), `SELECT coalesce(array_agg(kind ORDER BY at, id), '{}')
		FROM run_event WHERE run_id = $1`, run).Scan(&all)
	if err != nil {
		b.Fatal(err)
	}
	return all
}

// wantRefused wants a StateError that says all of it.
func (b *bench) wantRefused(err error, parts ...string) {
	b.Helper()
	if _, ok := errors.AsType[*workqueue.StateError](err); !ok {
		b.Errorf("%v; want a StateError", err)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			b.Errorf("the refusal %q does not say %q", err, part)
		}
	}
}

func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.load(request(), 16)
	out := b.claim(run, 2)
	b.send(out...)
	if got := b.pauseRun(run); got.Slices != 2 || got.Items != 8 || !slices.Equal(got.Runs, []workqueue.RunID{run}) {
		t.Errorf("paused %+v; want 8 items in 2 slices out", got)
	}
	b.wantHold(run, "operator by ann: the service is sick")
	if n := len(b.claim(run, plenty)); n != 0 {
		t.Errorf("%d slices of a paused run were claimed", n)
	}
	b.record(whole(out[0])) // what is out is recorded all the same
	b.wantTally(run, tally{ready: 8, live: 4, done: 4})
	_, err := control.New(b.store).Pause(t.Context(), wish(run, "again"))
	b.wantRefused(err, "paused already by ann: the service is sick")
	b.check()
	b.resume(run)
	b.wantHold(run, "")
	_, err = control.New(b.store).Resume(t.Context(), wish(run, ""), nil)
	b.wantRefused(err, "not paused")
	b.record(whole(out[1]))
	b.finish(run)
	b.wantState(run, "completed", 1)
	if got := b.actions(run); !slices.Equal(got, []string{"start by test", "pause by ann", "resume by ann"}) {
		t.Errorf("audited: %v", got)
	}
	if got := b.events(run); !slices.Equal(got, []string{"started", "paused", "resumed", "completed"}) {
		t.Errorf("events: %v", got)
	}
	var before, after string
	err = b.pool.QueryRow(t.Context(), `SELECT before->>'hold', coalesce(after->>'hold', 'none') FROM audit_log
		WHERE run_id = $1 AND action = 'resume'`, run).Scan(&before, &after)
	if err != nil || before != "operator" || after != "none" {
		t.Errorf("the resume changed %q to %q, %v", before, after, err)
	}
	b.check()
}

func TestControlRefusals(t *testing.T) {
	t.Parallel()
	b := setup(t)
	done := b.load(request(), 4)
	b.finish(done)
	_, err := control.New(b.store).Pause(t.Context(), wish(done, ""))
	b.wantRefused(err, "it is completed")
	_, err = control.New(b.store).Resume(t.Context(), wish(done, ""), nil)
	b.wantRefused(err, "it is completed")
	_, err = control.New(b.store).Approve(t.Context(), wish(done, ""))
	b.wantRefused(err, "it is completed")
	nobody := workqueue.NewRunID()
	for name, do := range map[string]func(control.Control) error{
		"pause":   func(c control.Control) error { _, err := control.New(b.store).Pause(t.Context(), c); return err },
		"resume":  func(c control.Control) error { _, err := control.New(b.store).Resume(t.Context(), c, nil); return err },
		"approve": func(c control.Control) error { _, err := control.New(b.store).Approve(t.Context(), c); return err },
		"cancel":  func(c control.Control) error { _, err := control.New(b.store).Cancel(t.Context(), c); return err },
	} {
		if err := do(wish(nobody, "")); !errors.Is(err, workqueue.ErrNotFound) {
			t.Errorf("%s of no such run: %v", name, err)
		}
		if err := do(control.Control{}); err == nil {
			t.Errorf("%s of neither a run nor all was taken", name)
		}
		if err := do(control.Control{Run: done, All: true}); err == nil {
			t.Errorf("%s of a run and all was taken", name)
		}
		if err := do(wish(done, strings.Repeat("x", 2001))); err == nil {
			t.Errorf("%s with an endless reason was taken", name)
		}
	}
}

// Replies that come while a run is paused may complete it. It is not paused then, and a re-run of it runs.
func TestPausedRunCompletes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.load(request(), 8)
	out := b.claim(run, plenty)
	b.pauseRun(run)
	for _, s := range out {
		b.record(whole(s))
	}
	b.wantState(run, "completed", 1)
	b.wantCompletions(run, 1)
	b.rerun(run, redo.Selection{Keys: []string{"C1"}})
	b.wantHold(run, "")
	b.finish(run)
	b.wantCompletions(run, 1, 2)
	b.check()
}

func TestPauseAndResumeAll(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second, paused, done := b.load(request(), 4), b.load(request(), 4), b.load(request(), 4), b.load(request(), 4)
	b.finish(done)
	b.pauseRun(paused)
	every := control.Control{All: true, Actor: "ann", Reason: "stop the world"}
	out, err := control.New(b.store).Pause(t.Context(), every)
	if err != nil || !slices.Equal(out.Runs, []workqueue.RunID{first, second}) || len(out.Left) != 1 ||
		out.Left[0].Run != paused || !strings.Contains(out.Left[0].Why, "paused already") {
		t.Errorf("paused all: %+v, %v", out, err)
	}
	for _, run := range []workqueue.RunID{first, second} {
		b.wantHold(run, "operator by ann: stop the world")
		if n := len(b.claim(run, plenty)); n != 0 {
			t.Errorf("%d slices were claimed", n)
		}
	}
	b.threshold(second, "0")
	b.exec(`UPDATE work_block SET ready = ready << 1, failed = B'0001'::bit(8192) WHERE run_id = $1`, second) // of four
	out, err = control.New(b.store).Resume(t.Context(), every, nil)
	if err != nil || !slices.Equal(out.Runs, []workqueue.RunID{first, paused}) || len(out.Left) != 1 ||
		out.Left[0].Run != second || !strings.Contains(out.Left[0].Why, "1 of 4 items failed; the limit is 0") {
		t.Errorf("resumed all: %+v, %v", out, err)
	}
	b.wantHold(first, "")
	b.wantHold(second, "operator by ann: stop the world")
	all, err := control.New(b.store).Cancel(t.Context(), every)
	if err != nil || len(all.Runs) != 3 || len(all.Left) != 0 {
		t.Errorf("cancelled all: %+v, %v; want three runs, a paused one among them", all, err)
	}
	b.wantState(second, "cancelled", 1)
}

func TestThreshold(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.load(request(), 40)
	b.checkThreshold(run, false)
	b.threshold(run, "10%")
	bad := workqueue.SlotError{Code: "bad", Message: "m"}
	b.record(faulty(b.one(run), bad))
	b.checkThreshold(run, false) // 4 of 40 are 10%
	late := b.one(run)
	b.record(faulty(b.one(run), bad))
	due, err := control.New(b.store).DueHolds(t.Context())
	if err != nil || len(due) != 1 || due[0] != (control.DueHold{Run: run, Threshold: true}) {
		t.Errorf("due: %+v, %v", due, err)
	}
	b.checkThreshold(run, true)
	b.checkThreshold(run, false)
	b.wantHold(run, "threshold by tranche: 8 of 40 items failed; the limit is 4 (--max-failed 10%)")
	if due, err = control.New(b.store).DueHolds(t.Context()); err != nil || len(due) != 0 {
		t.Errorf("due once it is held: %+v, %v", due, err)
	}
	if n := len(b.claim(run, plenty)); n != 0 {
		t.Errorf("%d slices of a held run were claimed", n)
	}
	_, err = control.New(b.store).Resume(t.Context(), wish(run, ""), nil)
	b.wantRefused(err, "8 of 40 items failed", "--max-failed N", "tranche run rerun "+run.String()+" --failed")
	seven := "7"
	_, err = control.New(b.store).Resume(t.Context(), wish(run, ""), &seven)
	b.wantRefused(err, "the limit is 7 (--max-failed 7)")
	if n := b.number(`SELECT failed_limit FROM batchrun WHERE id = $1`, run); n != 4 {
		t.Errorf("a refused resume set the limit to %d", n)
	}
	again := b.rerun(run, redo.Selection{Codes: []string{"bad"}})
	if again.Hold != control.HoldThreshold || !strings.HasPrefix(again.HoldDetail, "8 of 40") {
		t.Errorf("the re-run of a held run says %+v", again)
	}
	b.resume(run) // they are no failures any more
	b.record(faulty(late, bad))
	b.checkThreshold(run, false)
	b.record(faulty(b.one(run), bad))
	b.checkThreshold(run, true)
	none := ""
	if _, err := control.New(b.store).Resume(t.Context(), wish(run, ""), &none); err != nil {
		t.Errorf("resume without a threshold: %v", err)
	}
	b.checkThreshold(run, false)
	b.finish(run)
	b.wantState(run, "completed", 2)
	b.check()
}

func TestFailedLimit(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text    string
		items   int64
		limit   int64
		limited bool
	}{
		{"", 100, 0, false}, {"0", 100, 0, true}, {"500", 100, 500, true}, {"1%", 1_000_000, 10_000, true},
		{"1%", 199, 1, true}, {"0.5%", 1000, 5, true}, {"0.0001%", 1_000_000, 1, true}, {"100%", 7, 7, true},
		{"0%", 7, 0, true}, {"33.3333%", 2_147_475_456, 715_824_436, true},
	} {
		limit, limited, err := workqueue.FailedLimit(c.text, c.items)
		if err != nil || limit != c.limit || limited != c.limited {
			t.Errorf("%q of %d: %d, %v, %v; want %d, %v", c.text, c.items, limit, limited, err, c.limit, c.limited)
		}
	}
	for _, text := range []string{"%", "-1", "1.5", "101%", "1.%", ".5%", "0.00001%", "x", "1 %", "1e3", "3000000000"} {
		var setting *workqueue.SettingError
		if _, _, err := workqueue.FailedLimit(text, 100); !errors.As(err, &setting) {
			t.Errorf("%q was taken: %v", text, err)
		}
	}
}

// The last failure completes the run and passes the threshold. Whoever is first, the run is completed once.
func TestThresholdRacesTheLastAck(t *testing.T) {
	t.Parallel()
	b := setup(t)
	held := 0
	for range 40 {
		run := b.load(request(), 8)
		b.threshold(run, "4")
		out := b.claim(run, plenty)
		bad := workqueue.SlotError{Code: "bad", Message: "m"}
		var wg sync.WaitGroup
		for _, s := range out {
			wg.Go(func() {
				if _, err := settle.New(b.store).Record(t.Context(), []settle.Answer{faulty(s, bad)}); err != nil {
					t.Error(err)
				}
				if is, err := control.New(b.store).CheckThreshold(t.Context(), run); err != nil {
					t.Error(err)
				} else if is {
					held++ // of the two checks, one at the most holds the run
				}
			})
		}
		wg.Wait()
		b.wantState(run, "completed", 1)
		b.wantCompletions(run, 1)
		_, err := control.New(b.store).Resume(t.Context(), wish(run, ""), nil)
		b.wantRefused(err, "it is completed")
	}
	t.Logf("%d of 40 runs were held before they completed", held)
	b.check()
}

// A pause, a resume and replies meet in any order, and the run completes once.
func TestPauseRacesReplies(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for round := range 25 {
		run := b.load(request(), 24)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for range 6 {
					claimed, err := dispatch.New(b.store).Claim(t.Context(), b.claimRequest(run, 1))
					if err != nil && !errors.Is(err, workqueue.ErrBusy) {
						t.Error(err)
					}
					for _, s := range claimed.Slices {
						if _, err := settle.New(b.store).Record(t.Context(), []settle.Answer{whole(s)}); err != nil {
							t.Error(err)
						}
					}
				}
			})
		}
		wg.Go(func() {
			var state *workqueue.StateError
			for i := range 6 {
				_, err := control.New(b.store).Pause(t.Context(), wish(run, fmt.Sprint(i)))
				if err == nil {
					_, err = control.New(b.store).Resume(t.Context(), wish(run, ""), nil)
				}
				if err != nil && !errors.As(err, &state) {
					t.Errorf("round %d: %v", round, err)
				}
			}
		})
		wg.Wait()
		b.finish(run)
		b.wantState(run, "completed", 1)
		b.wantCompletions(run, 1)
	}
	b.check()
}
