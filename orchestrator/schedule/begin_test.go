package schedule_test

import (
	"context"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/schedule"
	"github.com/tranchehq/tranche/workqueue"
	store "github.com/tranchehq/tranche/workqueue/schedule"
)

// TestStartOfADeadLeaderIsOutOfTime leaves starts that a leader had begun for half an hour, until their windows and
// deadlines are over.
func TestStartOfADeadLeaderIsOutOfTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "08:59:00")
	w.apply("deadline", hourly+"start_deadline: 30m\n")
	w.apply("window", hourly+"window: {not_before: \"08:00\", end_deadline: \"09:30\"}\n")
	w.apply("free", hourly)
	w.dieStarting()
	w.want("window", "09:00 starting")
	w.set("09:45:00")
	second := w.lead()
	second.settle()
	w.want("deadline", "09:00 missed")
	w.want("window", "09:00 due")
	w.want("free", "09:00 started/running")
	w.end()
	w.exec(`UPDATE schedule SET state = 'paused'`)
	w.exec(`UPDATE schedule SET state = 'active' WHERE name = 'window'`)
	w.set("2031-05-06T08:00:01Z")
	second.settle()
	if f := w.fires("window"); w.runs() != 2 {
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
	if n := w.runs(); n != 0 {
		t.Errorf("%d runs", n)
	}
}

// TestAQueueIsBounded has more fires come at once than a queue takes.
func TestAQueueIsBounded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "08:59:00")
	w.apply("s", hourly+"overlap: queue\n")
	w.exec(`INSERT INTO schedule_occurrence (schedule, due_at, kind, version, state, start_at)
SELECT 's', tranche_now() - n * interval '1 s', 'now', 1, 'due', tranche_now() FROM generate_series(1, 103) n`)
	w.lead().settle()
	states := map[store.FireState]int{}
	fires, _, err := store.New(w.store).Fires(t.Context(), store.FireFilter{Schedule: "s", Limit: store.MaxFires})
	testenv.NoError(t, err)
	for _, f := range fires {
		states[f.State]++
	}
	if states[store.FireStarted] != 1 || states[store.FireQueued] != 100 || states[store.FireSkipped] != 2 {
		t.Errorf("the fires are %v", states)
	}
}

// TestStartThatEndsItsNodes is taken up again and again, and in the end no more.
func TestStartThatEndsItsNodes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "08:59:00")
	w.apply("s", hourly)
	w.dieStarting()
	w.want("s", "09:00 starting")
	w.exec(`UPDATE schedule_occurrence SET attempts = 25`) // so many leaders came after the first
	second := w.lead()
	second.settle()
	w.want("s", "09:00 failed")
	w.end()
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
