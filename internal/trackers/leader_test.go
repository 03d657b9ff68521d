package trackers_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/endpoints/fanout"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/internal/trackers"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
)

// What was idle for too long expires, what ended long ago is deleted, and both only by the leader.
func TestTheLeaderEndsWhatEverybodyForgot(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	id := b.open(fanout.BatchSettings{}, 2*bitfield.Size)
	old := b.lease()
	b.resign(old)
	lease, reap := b.lease(), trackers.Reaper(b.db, zap.NewNop())
	for _, want := range []struct{ live, ended, groups int }{{0, 1, 2}, {0, 0, 0}} {
		b.exec(`UPDATE tracker_service SET active_at = active_at - interval '9 days', reap_at = tranche_now(),
			expired_at = expired_at - interval '9 days'`)
		b.exec(`UPDATE tracker_batch SET active_at = active_at - interval '9 days'`)
		before := b.count(`SELECT count(*) FROM tracker_service WHERE expired_at IS NULL`)
		if _, err := reap(t.Context(), old); !errors.Is(err, workqueue.ErrNotLeader) {
			t.Errorf("by one who leads no longer: %v", err)
		}
		if n := b.count(`SELECT count(*) FROM tracker_service WHERE expired_at IS NULL`); n != before {
			t.Error("one who leads no longer ended it")
		}
		if _, err := reap(t.Context(), lease); err != nil {
			t.Error(err)
		}
		live := b.count(`SELECT count(*) FROM tracker_service WHERE expired_at IS NULL`)
		ended := b.count(`SELECT count(*) FROM tracker_service WHERE batch_id = $1 AND expired_at IS NOT NULL`, id)
		if groups := b.count(`SELECT count(*) FROM tracker_group`); live != want.live || ended != want.ended ||
			groups != want.groups {
			t.Errorf("%d are live, %d ended, with %d groups; want %+v", live, ended, groups, want)
		}
	}
}

// A call that meets an add or an ack of a billion items waits for longer than one statement may wait for a lock.
func TestCallsWaitForLargeOnes(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ctx, id := t.Context(), b.open(fanout.BatchSettings{}, 1)
	config := b.pool.Config().Copy()
	config.ConnConfig.RuntimeParams["lock_timeout"] = "2000" // a dozen of them are more than we may be stalled
	config.ConnConfig.RuntimeParams["application_name"] = "impatient"
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	holder, err := b.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Rollback(context.Background()) }()
	if _, err := holder.Exec(ctx, `SELECT FROM tracker_batch WHERE id = $1 FOR UPDATE`, id); err != nil {
		t.Fatal(err)
	}
	sealed := make(chan error, 1)
	go func() {
		service := trackers.New(database.New(pool), trackers.Config{})
		_, err := service.Seal(ctx, fanout.BatchRequest{Batch: id.String()}, ann)
		sealed <- err
	}()
	attempts := map[string]bool{}
	testenv.Until(t, soon, "it begins again", func() bool {
		var began string
		if err := b.pool.QueryRow(ctx, `SELECT coalesce(max(xact_start)::text, '') FROM pg_stat_activity
			WHERE application_name = 'impatient' AND wait_event_type = 'Lock'`).Scan(&began); err != nil {
			t.Fatal(err)
		}
		if began != "" {
			attempts[began] = true
		}
		return len(attempts) == 2
	})
	if err := holder.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-sealed; err != nil {
		t.Error(err)
	}
}
