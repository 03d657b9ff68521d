package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/schedule"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	store "github.com/tranchehq/tranche/workqueue/schedule"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// holdUp has the items of some schedules not come until the test ends.
func (w *world) holdUp(slow func(schedule string) bool) {
	ctx, end := context.WithCancel(w.Context())
	w.Cleanup(end)
	w.before = func(_ context.Context, job schedule.Job) error {
		if !slow(job.Claim.Schedule) {
			return nil
		}
		<-ctx.Done()
		return ctx.Err()
	}
}

// look has the leader task look a few times, whatever it is loading.
func (l *leader) look() {
	l.Helper()
	for range 3 {
		testenv.Must(l.task.Run(l.Context(), l.lease))(l)
	}
}

// TestTurnsAreTold has the items of four runs come slowly. Those that wait for their turn say so, until the slow ones
// make room, or it is too late.
func TestTurnsAreTold(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "08:30:00")
	for _, name := range []string{"a", "b", "c", "d", "e", "g"} {
		w.apply(name, hourly)
	}
	w.apply("f", hourly+"start_deadline: 1m\n")
	l := w.lead()
	w.holdUp(func(name string) bool { return name < "e" })
	w.stop("09:00:00")
	l.look()
	w.want("d", "09:00 starting")
	const turn = "its turn has not come: 4 runs of schedules are being loaded (a, b, c, d), and "
	for name, want := range map[string]string{
		"a": "", "e": turn + "it is next", "f": turn + "another is before it", "g": turn + "2 others are before it",
	} {
		if f := w.last(name); f.Reason != want || !f.StartAt.Equal(f.Due) {
			t.Errorf("%s is %+v; want %q", name, f, want)
		}
	}
	const failed = "attempt 1 of 5: there is no file"
	w.exec(`UPDATE schedule_occurrence SET reason = $1, attempts = 1 WHERE schedule = 'g'`, failed)
	w.stop("09:00:05")
	l.look()
	testenv.Same(t, w.last("g").Reason, failed, "it is written at each look")
	for _, now := range []string{"09:00:10", "09:00:20"} {
		w.stop(now)
		l.look()
		testenv.Same(t, w.last("g").Reason, turn+"2 others are before it; before that: "+failed, "at %s it waits as", now)
	}
	w.stop("09:01:01")
	l.look()
	w.want("f", "09:00 missed")
	testenv.Has(t, w.last("f").Reason, "start_deadline was over; "+turn, "it was missed as")
	w.comes("e", "09:00 started/running")
	w.comes("g", "09:00 started/running")
	w.want("a", "09:00 starting")
}

// comes waits until a goroutine has started a run.
func (w *world) comes(name, occurrences string) {
	w.Helper()
	testenv.Until(w, 2*time.Minute, name+" has "+occurrences, func() bool { return w.occurrences(name) == occurrences })
}

// TestSlowLoadsAreBounded has the items of all runs come slowly.
func TestSlowLoadsAreBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "08:30:00")
	for i := range 20 {
		w.apply(fmt.Sprintf("s%02d", i), hourly)
	}
	l := w.lead()
	w.holdUp(func(string) bool { return true })
	for minute, want := range []int{4, 8, 12, 16, 16, 16} {
		w.stop(fmt.Sprintf("09:%02d:%02d", minute, minute))
		l.look()
		testenv.Same(t, w.number(`SELECT count(*) FROM schedule_occurrence WHERE state = 'starting'`), want,
			"runs being loaded after %d minutes", minute)
	}
	if f := w.last("s16"); !strings.HasPrefix(f.Reason, "its turn has not come: 16 runs of schedules are being loaded (") {
		t.Errorf("it waits as %+v", f)
	}
}

// A note changes the reason of an occurrence that waits as it was read, and nothing else.
func TestNotesAreFenced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "08:59:00")
	w.apply("s", hourly+"not_before: '22:00'\n")
	l := w.lead()
	l.at("09:00:00")
	f := w.last("s")
	key := store.OccurrenceKey{Schedule: "s", Due: f.Due, Kind: f.Kind}
	note := func(lease workqueue.Lease, was, reason string) error {
		return store.New(w.store).NoteOccurrences(t.Context(), lease,
			[]store.OccurrenceNote{{OccurrenceKey: key, Was: was, Reason: reason}})
	}
	testenv.NoError(t, errors.Join(note(l.lease, "", "one"), note(l.lease, "", "two")))
	second := w.lead()
	testenv.Is(t, note(l.lease, "one", "three"), workqueue.ErrNotLeader, "the leader that was writes")
	if got := w.last("s"); got.Reason != "one" || !got.StartAt.Equal(f.StartAt) || got.State != f.State {
		t.Errorf("it is %+v; it was %+v", got, f)
	}
	w.exec(`UPDATE schedule_occurrence SET state = 'skipped', ended_at = tranche_now()`)
	testenv.NoError(t, note(second.lease, "one", "four"))
	testenv.Same(t, w.last("s").Reason, "one", "one that was skipped: %+v", w.last("s"))
}

// TestStartOfADeadLeaderIsOutOfTime leaves starts that a leader had begun for half an hour, until their windows and
// deadlines are over.
func TestStartOfADeadLeaderIsOutOfTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "08:59:00")
	w.apply("deadline", hourly+"start_deadline: 30m\n")
	w.apply("window", hourly+"not_before: \"08:00\"\ndone_by: \"09:30\"\n")
	w.apply("free", hourly)
	w.apply("deadly", hourly)
	w.dieStarting()
	w.want("window", "09:00 starting")
	w.exec(`UPDATE schedule_occurrence SET attempts = 25 WHERE schedule = 'deadly'`) // so many leaders came later
	w.set("09:45:00")
	second := w.lead()
	second.settle()
	w.want("deadline", "09:00 missed")
	w.want("window", "09:00 due")
	w.want("free", "09:00 started/running")
	w.want("deadly", "09:00 failed")
	w.end()
	w.exec(`UPDATE schedule SET state = 'paused'`)
	w.exec(`UPDATE schedule SET state = 'active' WHERE name = 'window'`)
	second.at("2031-05-06T08:00:01Z")
	if f := w.occurrences("window"); w.runs() != 2 {
		t.Errorf("the window is open again, and there are %d runs: %s", w.runs(), f)
	}
}

// TestDeletionEndsAStart deletes a schedule while a run of it is loaded, and applies it again.
func TestDeletionEndsAStart(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "08:59:00")
	w.apply("s", hourly)
	l := w.lead()
	w.set("09:00:00")
	w.before = func(ctx context.Context, _ schedule.Job) error {
		_, err := store.New(w.store).SetSchedule(ctx, "s", workqueue.DocumentDeleted, nil, "ann")
		return err
	}
	l.settle()
	w.before = nil
	w.want("s", "09:00 skipped")
	w.apply("s", hourly)
	l.settle()
	w.want("s", "09:00 skipped")
	testenv.Same(t, w.runs(), 0, "runs")
}

// TestAQueueIsBounded has more occurrences come due together than a queue takes.
func TestAQueueIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "08:59:00")
	w.apply("s", hourly+"overlap: queue\n")
	w.exec(`INSERT INTO schedule_occurrence (schedule, due_at, kind, version, state, start_at)
SELECT 's', tranche_now() - n * interval '1 s', 'now', 1, 'due', tranche_now() FROM generate_series(1, 103) n`)
	w.lead().settle()
	states := map[store.OccurrenceState]int{}
	list, err := store.New(w.store).Occurrences(t.Context(),
		store.OccurrenceFilter{Schedule: "s", Limit: store.MaxOccurrences})
	testenv.NoError(t, err)
	for _, f := range list.Occurrences {
		states[f.State]++
	}
	if states[store.OccurrenceStarted] != 1 || states[store.OccurrenceQueued] != 100 ||
		states[store.OccurrenceSkipped] != 2 {
		t.Errorf("the occurrences are %v", states)
	}
}

// dieStarting has a leader begin, at nine, to start what is due, and end in the midst of it.
func (w *world) dieStarting() {
	w.Helper()
	leader := w.lead()
	w.set("09:00:00")
	ctx, kill := context.WithCancel(w.Context())
	w.before = func(ctx context.Context, _ schedule.Job) error {
		<-ctx.Done()
		return ctx.Err()
	}
	for range 3 {
		testenv.Must(leader.task.Run(ctx, leader.lease))(w)
	}
	kill()
	leader.task.Wait()
	w.before = nil
}

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
	out := testenv.Must(settle.New(w.store).Record(w.Context(), []settle.Answer{answer}))(w)
	testenv.MustSame(w, len(out.Verdicts), 1, "%+v", out)
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
			first.at("09:00:00")
			work := w.claim("s")
			w.set("10:00:00")
			ctx, cancel := context.WithCancelCause(t.Context())
			die(w, first, func() { cancel(died) })
			for range 3 {
				_, _ = first.task.Run(ctx, first.lease) // it is dead by then
			}
			first.task.Wait()
			testenv.MustSame(t, context.Cause(ctx), died, "the leader's end")
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
			_, err := first.task.Run(t.Context(), first.lease)
			testenv.Is(t, err, workqueue.ErrNotLeader, "the leader that died still works")
		})
	}
}

// TestLateRunsWithOthersBehindThem has a run last beyond later due times and the end of its window. What waits behind
// it is started when the window opens again, in its order, each once.
func TestLateRunsWithOthersBehindThem(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "08:30:00")
	const window = "cron: 0 9-11 * * *\nnot_before: '09:00'\ndone_by: '11:30'\n"
	w.apply("cancel", window+"overlap: queue\non_late: cancel\n")
	w.apply("pause", window+"overlap: queue\non_late: pause\n")
	w.apply("skip", window+"on_late: cancel\n")
	w.apply("replace", window+"overlap: cancel_old\non_late: cancel\n")
	w.apply("next", "cron: 0 9,10 * * *\ndone_by: '11:15'\noverlap: queue\non_late: cancel\n")
	l := w.lead()
	l.at("09:00:00", "10:00:00", "11:00:00")
	work := w.claim("replace")
	l.at("11:30:01")
	w.want("next", "09:00 started/cancelled, 10:00 started/running")
	l = w.lead()
	l.settle()
	w.want("cancel", "09:00 started/cancelled, 10:00 due, 11:00 due")
	w.want("pause", "09:00 started/running, 10:00 due, 11:00 due")
	w.want("skip", "09:00 started/cancelled, 10:00 skipped, 11:00 skipped")
	w.want("replace", "09:00 started/cancelled, 10:00 started/cancelled, 11:00 started/cancelled")
	if taken, stale := w.answer(&work); taken != 0 || !stale {
		t.Errorf("a run that was late takes answers still: %d, %t", taken, stale)
	}
	testenv.Same(t, w.number(`SELECT count(*) FROM run_event WHERE kind = 'schedule.late'`), 5,
		"events report 5 late runs")
	runs := w.runs()
	w.exec(`UPDATE schedule SET state = 'paused' WHERE name <> 'cancel'`)
	l.at("2031-05-06T09:00:01Z")
	w.want("cancel", "09:00 started/cancelled, 10:00 started/running, 11:00 queued, 09:00 queued")
	testenv.Same(t, w.runs(), runs+1, "%d runs more", w.runs()-runs)
	if f := w.last("cancel"); f.DoneBy.Sub(f.StartAt) > 3*time.Hour {
		t.Errorf("the last occurrence is %+v", f)
	}
}
