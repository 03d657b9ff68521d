package schedule_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// claim has a node claim work of the run that was started last.
func (w *world) claim(name string) workqueue.Slice {
	w.Helper()
	node := session.NodeInfo{Host: "at work", PID: 1, Version: "test"}
	session := testenv.Must(session.New(w.store).StartSession(w.Context(), node, forEver))(w)
	claimed, err := dispatch.New(w.store).Claim(w.Context(), dispatch.ClaimRequest{
		Session: session, Run: *w.last(name).Run, MaxSlices: 1, MaxBytes: 1 << 20,
	})
	if err != nil || len(claimed.Slices) != 1 {
		w.Fatalf("%d slices were claimed, %v", len(claimed.Slices), err)
	}
	return claimed.Slices[0]
}

// answer records what came of claimed work, and returns how many of its items were taken.
func (w *world) answer(s *workqueue.Slice) (taken int, stale bool) {
	w.Helper()
	answer := settle.Answer{Slice: s.ID, Endpoint: "e", Answered: s.Mask.Count()}
	for i := range s.Mask.Count() {
		answer.Slots = append(answer.Slots, settle.Slot{Ordinal: workqueue.Ordinal(i), Result: []byte(`1`)})
	}
	out, err := settle.New(w.store).Record(w.Context(), []settle.Answer{answer})
	if err != nil || len(out.Verdicts) != 1 {
		w.Fatalf("%+v, %v", out, err)
	}
	return out.Verdicts[0].Taken, out.Verdicts[0].Stale
}

// TestLeaderDiesAsItCancels has a run at work when the next due time of its schedule comes, and kills the leader at
// each point between the end of the old run and the begin of the new one.
func TestLeaderDiesAsItCancels(t *testing.T) {
	t.Parallel()
	died := errors.New("it died")
	for name, die := range map[string]func(w *world, l *leader, kill func()){
		"before the old run is cancelled": func(_ *world, l *leader, kill func()) {
			l.cancels = func(bool) { kill() }
		},
		"after the old run was cancelled": func(_ *world, l *leader, kill func()) {
			l.cancels = func(after bool) {
				if after {
					kill()
				}
			}
		},
		"before the load":                dieBeforeTheLoad,
		"after the load, before it knew": dieAfterTheLoad,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, "08:59:00")
			w.apply("s", hourly+"overlap: cancel_old\n")
			first := w.lead()
			w.set("09:00:00")
			first.settle()
			work := w.claim("s")
			w.set("10:00:00")
			ctx, cancel := context.WithCancelCause(t.Context())
			die(w, first, func() { cancel(died) })
			for range 3 {
				_, _ = first.task.Run(ctx, first.lease) // it is dead by then
			}
			first.task.Wait()
			if !errors.Is(context.Cause(ctx), died) {
				t.Fatal("the leader did not die")
			}
			w.before, w.after = nil, nil
			w.lead().settle()
			w.want("s", "09:00 started/cancelled, 10:00 started/running")
			if taken, stale := w.answer(&work); taken != 0 || !stale {
				t.Errorf("the old run takes answers still: %d, %t", taken, stale)
			}
			cancels := w.number(`SELECT count(*) FROM audit_log WHERE action = 'cancel'`)
			items := w.number(`SELECT count(*) FROM work_queue q JOIN batchrun r ON r.id = q.run_id WHERE r.state = 'running'`)
			if w.runs() != 2 || cancels != 1 || items != 3 {
				t.Errorf("%d runs, %d cancels, %d items of the new run", w.runs(), cancels, items)
			}
			if _, err := first.task.Run(t.Context(), first.lease); !errors.Is(err, workqueue.ErrNotLeader) {
				t.Errorf("the leader that died still works: %v", err)
			}
		})
	}
}

// TestLateRunsWithOthersBehindThem has a run last beyond later due times and the end of its window. What waits behind
// it is started when the window opens again, in its order, each once.
func TestLateRunsWithOthersBehindThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "08:30:00")
	const window = "cron: 0 9-11 * * *\nwindow: {not_before: '09:00', end_deadline: '11:30'}\n"
	w.apply("cancel", window+"overlap: queue\non_late: cancel\n")
	w.apply("pause", window+"overlap: queue\non_late: pause\n")
	w.apply("skip", window+"on_late: cancel\n")
	w.apply("replace", window+"overlap: cancel_old\non_late: cancel\n")
	l := w.lead()
	for _, now := range []string{"09:00:00", "10:00:00", "11:00:00"} {
		w.set(now)
		l.settle()
	}
	work := w.claim("replace")
	w.set("11:30:01")
	l.settle()
	l = w.lead()
	l.settle()
	w.want("cancel", "09:00 started/cancelled, 10:00 due, 11:00 due")
	w.want("pause", "09:00 started/running, 10:00 due, 11:00 due")
	w.want("skip", "09:00 started/cancelled, 10:00 skipped, 11:00 skipped")
	w.want("replace", "09:00 started/cancelled, 10:00 started/cancelled, 11:00 started/cancelled")
	if taken, stale := w.answer(&work); taken != 0 || !stale {
		t.Errorf("a run that was late takes answers still: %d, %t", taken, stale)
	}
	if late := w.number(`SELECT count(*) FROM run_event WHERE kind = 'schedule.late'`); late != 4 {
		t.Errorf("%d events tell of 4 late runs", late)
	}
	runs := w.runs()
	w.exec(`UPDATE schedule SET state = 'paused' WHERE name <> 'cancel'`)
	w.set("2031-05-06T09:00:01Z")
	l.settle()
	w.want("cancel", "09:00 started/cancelled, 10:00 started/running, 11:00 queued, 09:00 queued")
	if w.runs() != runs+1 {
		t.Errorf("%d runs more; want 1", w.runs()-runs)
	}
	if f := w.last("cancel"); f.EndDeadline.Sub(f.StartAt) > 3*time.Hour {
		t.Errorf("the last fire is %+v", f)
	}
}
