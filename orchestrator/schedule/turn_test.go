package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/schedule"
	"github.com/tranchehq/tranche/workqueue"
	store "github.com/tranchehq/tranche/workqueue/schedule"
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
	if f := w.last("g"); f.Reason != failed {
		t.Errorf("it is written at each look: %+v", f)
	}
	for _, now := range []string{"09:00:10", "09:00:20"} {
		w.stop(now)
		l.look()
		if f := w.last("g"); f.Reason != turn+"2 others are before it; before that: "+failed {
			t.Errorf("at %s it waits as %+v", now, f)
		}
	}
	w.stop("09:01:01")
	l.look()
	w.want("f", "09:00 missed")
	if f := w.last("f"); !strings.Contains(f.Reason, "start_deadline was over; "+turn) {
		t.Errorf("it was missed as %+v", f)
	}
	w.comes("e", "09:00 started/running")
	w.comes("g", "09:00 started/running")
	w.want("a", "09:00 starting")
}

// comes waits until a goroutine has started a run.
func (w *world) comes(name, fires string) {
	w.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	limit := time.After(2 * time.Minute)
	for w.fires(name) != fires {
		select {
		case <-tick.C:
		case <-limit:
			w.want(name, fires)
		}
	}
}

// TestNobodyOvertakesWithinALook has hands come free between two due times of a schedule that a look goes through.
func TestNobodyOvertakesWithinALook(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "08:30:00")
	w.apply("r", "cron: 30 8-9 * * *\noverlap: cancel_old\n")
	l := w.lead()
	w.set("09:30:00")
	l.settle()
	w.want("r", "09:30 started/running")
	for _, name := range []string{"a", "b", "c", "d", "s"} {
		w.apply(name, hourly)
	}
	w.stop("10:02:00")
	w.exec(`INSERT INTO schedule_occurrence (schedule, due_at, kind, version, state, start_at)
SELECT name, due, 'due', 1, 'due', $2 FROM (VALUES ('r', $1::timestamptz), ('s', $2)) f (name, due)`,
		instant(t, "10:01:00"), instant(t, "10:02:00"))
	hands := make(chan struct{})
	w.before = func(_ context.Context, job schedule.Job) error {
		if job.Claim.Schedule < "e" {
			<-hands
		}
		return nil
	}
	woken := l.woken.Load()
	l.cancels = func(after bool) {
		if after {
			return
		}
		close(hands)
		for _, name := range []string{"a", "b", "c", "d"} {
			w.comes(name, "10:00 started/running")
		}
		for l.woken.Load() < woken+4 {
			runtime.Gosched()
		}
	}
	testenv.Must(l.task.Run(t.Context(), l.lease))(t)
	w.want("a", "10:00 started/running")
	w.want("s", "10:00 due, 10:02 due")
	l.settle()
	w.want("s", "10:00 started/running, 10:02 skipped")
	w.want("r", "09:30 started/cancelled, 10:01 started/running")
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
		if n := w.number(`SELECT count(*) FROM schedule_occurrence WHERE state = 'starting'`); n != want {
			t.Errorf("after %d minutes %d runs are being loaded; want %d", minute, n, want)
		}
	}
	if f := w.last("s16"); !strings.HasPrefix(f.Reason, "its turn has not come: 16 runs of schedules are being loaded (") {
		t.Errorf("it waits as %+v", f)
	}
}

// A note changes the reason of a fire that waits as it was read, and nothing else.
func TestNotesAreFenced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "08:59:00")
	w.apply("s", hourly+"window: {not_before: '22:00'}\n")
	l := w.lead()
	w.set("09:00:00")
	l.settle()
	f := w.last("s")
	key := store.FireKey{Schedule: "s", Due: f.Due, Kind: f.Kind}
	note := func(lease workqueue.Lease, was, reason string) error {
		return store.New(w.store).NoteFires(t.Context(), lease,
			[]store.FireNote{{FireKey: key, Was: was, Reason: reason}})
	}
	testenv.NoError(t, errors.Join(note(l.lease, "", "one"), note(l.lease, "", "two")))
	second := w.lead()
	if err := note(l.lease, "one", "three"); !errors.Is(err, workqueue.ErrNotLeader) {
		t.Errorf("the leader that was writes: %v", err)
	}
	if got := w.last("s"); got.Reason != "one" || !got.StartAt.Equal(f.StartAt) || got.State != f.State {
		t.Errorf("it is %+v; it was %+v", got, f)
	}
	w.exec(`UPDATE schedule_occurrence SET state = 'skipped', ended_at = tranche_now()`)
	if err := note(second.lease, "one", "four"); err != nil || w.last("s").Reason != "one" {
		t.Errorf("one that was skipped: %+v, %v", w.last("s"), err)
	}
}
