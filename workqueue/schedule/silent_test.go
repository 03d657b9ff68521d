package schedule_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/schedule"
	"github.com/tranchehq/tranche/workqueue/start"
)

// A database that says nothing has the leader's looks at schedules end, and those at what their runs start with: a
// leader task that hangs would start nothing, and its node would go on leading.
func TestLooksAtSchedulesEndWhenPostgresIsSilent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	tx, err := b.Pool.Begin(t.Context())
	if err == nil {
		_, err = tx.Exec(t.Context(), `LOCK TABLE schedule, schedule_occurrence, plan, batchrun IN ACCESS EXCLUSIVE MODE`)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context())) // without a deadline, as a leader task's is
	defer cancel()
	keyed := storetest.Request()
	keyed.IdempotencyKey = "k"
	looks := map[string]func() error{
		"due":     func() error { _, err := schedule.New(b.Store).DueSchedules(ctx, 1); return err },
		"waiting": func() error { _, err := schedule.New(b.Store).WaitingFires(ctx, 1); return err },
		"next":    func() error { _, _, err := schedule.New(b.Store).NextScheduleTime(ctx); return err },
		"plan":    func() error { _, err := inspect.New(b.Store).Plan(ctx, "p", 0); return err },
		"keyed":   func() error { _, _, err := start.New(b.Store).KeyedPlan(ctx, "k"); return err },
		"load":    func() error { _, err := start.New(b.Store).Load(ctx, keyed, nil); return err },
	}
	ends := map[string]chan error{}
	for name, look := range looks {
		ends[name] = make(chan error, 1)
		end := ends[name]
		go func() { end <- look() }()
	}
	limit := time.After(time.Minute)
	for name, end := range ends {
		select {
		case err := <-end:
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s ended with %v", name, err)
			}
		case <-limit:
			t.Errorf("%s does not end", name)
			cancel()
			t.Log(<-end)
		}
	}
}
