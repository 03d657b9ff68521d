package trackers_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/endpoints/trackerclient"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/internal/trackers"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
)

// What was idle for too long expires, what ended long ago is deleted, and both only by the leader.
func TestTheLeaderEndsWhatEverybodyForgot(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	id := b.open(trackerclient.BatchSettings{}, 2*bitfield.Size)
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
	ctx, id := t.Context(), b.open(trackerclient.BatchSettings{}, 1)
	config := b.pool.Config().Copy()
	config.ConnConfig.RuntimeParams["lock_timeout"] = "2000" // a dozen of them are more than we may be stalled
	config.ConnConfig.RuntimeParams["application_name"] = "impatient"
	pool := testenv.Must(pgxpool.NewWithConfig(ctx, config))(t)
	defer pool.Close()
	holder := testenv.Must(b.pool.Begin(ctx))(t)
	defer func() { _ = holder.Rollback(context.Background()) }()
	testenv.Must(holder.Exec(ctx, `SELECT FROM tracker_batch WHERE id = $1 FOR UPDATE`, id))(t)
	sealed := make(chan error, 1)
	go func() {
		service := trackers.New(database.New(pool), trackers.Config{})
		_, err := service.Seal(ctx, trackerclient.BatchRequest{Batch: id.String()}, ann)
		sealed <- err
	}()
	attempts := map[string]bool{}
	testenv.Until(t, soon, "it begins again", func() bool {
		var began string
		testenv.NoError(t, b.pool.QueryRow(ctx, `SELECT coalesce(max(xact_start)::text, '') FROM pg_stat_activity
			WHERE application_name = 'impatient' AND wait_event_type = 'Lock'`).Scan(&began))
		if began != "" {
			attempts[began] = true
		}
		return len(attempts) == 2
	})
	testenv.NoError(t, holder.Rollback(ctx))
	if err := <-sealed; err != nil {
		t.Error(err)
	}
}
