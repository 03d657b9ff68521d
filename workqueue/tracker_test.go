package workqueue_test

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/tracker"
	trackers "github.com/tranchehq/tranche/bitfield/tracker/service"
	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/session"
	trackerstore "github.com/tranchehq/tranche/workqueue/tracker"
)

// TestTrackersAreAudited opens, seals and deletes a tracker: each time once, with who did it, and adds and acks not at
// all.
func TestTrackersAreAudited(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	request := trackers.OpenRequest{Owner: "billing", Key: "k"}
	opened, err := trackerstore.New(b.Store).OpenTracker(ctx, request, "ann")
	if err != nil {
		t.Fatal(err)
	}
	if again, err := trackerstore.New(b.Store).OpenTracker(ctx, request, "bob"); err != nil || again.ID != opened.ID ||
		!again.Existing {
		t.Errorf("opened again: %+v, %v", again, err)
	}
	if _, err := trackerstore.New(b.Store).AddToTracker(ctx, opened.ID, 3, "page"); err != nil {
		t.Error(err)
	}
	if done, err := trackerstore.New(b.Store).SealTracker(ctx, opened.ID, "cyd"); done || err != nil {
		t.Errorf("sealed: %v, %v", done, err)
	}
	acked, err := trackerstore.New(b.Store).AckTrackers(ctx, []trackers.BatchAck{{Batch: opened.ID, All: true}})
	if err != nil || acked[0] != (trackers.Acked{Newly: 3, Completed: true}) {
		t.Errorf("acked %+v, %v", acked, err)
	}
	info, err := trackerstore.New(b.Store).Tracker(ctx, opened.ID)
	if err != nil || info.CreatedBy != "ann" || info.Done != 3 {
		t.Errorf("it is %+v, %v", info, err)
	}
	events, err := inspect.New(b.Store).UnpublishedEvents(ctx, inspect.EventPlace{}, nil, 10)
	if err != nil || len(events) != 1 || events[0].Kind != "tracker.completed" || uuid.UUID(events[0].Run) != opened.ID {
		t.Errorf("events %+v, %v", events, err)
	}
	if err := trackerstore.New(b.Store).DeleteTracker(ctx, opened.ID, "dan"); err != nil {
		t.Error(err)
	}
	if err := trackerstore.New(b.Store).DeleteTracker(ctx, opened.ID, "eve"); !errors.Is(err, tracker.ErrNotFound) {
		t.Errorf("deleted twice: %v", err)
	}
	for actor, name := range map[string]string{"ann": "tracker_open", "cyd": "tracker_seal", "dan": "tracker_delete"} {
		if n := b.Number(`SELECT count(*) FROM audit_log WHERE actor = $1 AND action = $2 AND subject = $3`,
			actor, name, opened.ID.String()); n != 1 {
			t.Errorf("%d rows of %s by %s", n, name, actor)
		}
	}
	if n := b.Number(`SELECT count(*) FROM audit_log`); n != 3 {
		t.Errorf("%d rows in the audit log, want 3", n)
	}
}

// TestTrackersWaitForLargeOnes holds a batch for longer than a statement may wait for a lock: what meets that begins
// again.
func TestTrackersWaitForLargeOnes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	opened, err := trackerstore.New(b.Store).OpenTracker(ctx, trackers.OpenRequest{Owner: "o"}, "ann")
	if err != nil {
		t.Fatal(err)
	}
	config := b.Pool.Config().Copy()
	config.ConnConfig.RuntimeParams["lock_timeout"] = "2000" // a dozen of them are more than we may are stalled
	config.ConnConfig.RuntimeParams["application_name"] = "impatient"
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	holder, err := b.Pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = holder.Rollback(context.Background()) }()
	if _, err := holder.Exec(ctx, `SELECT FROM tracker_batch WHERE id = $1 FOR UPDATE`, opened.ID); err != nil {
		t.Fatal(err)
	}
	sealed := make(chan error, 1)
	go func() {
		_, err := trackerstore.New(database.New(pool)).SealTracker(ctx, opened.ID, "bob")
		sealed <- err
	}()
	const waiting = `SELECT coalesce(max(xact_start)::text, '') FROM pg_stat_activity
		WHERE application_name = 'impatient' AND wait_event_type = 'Lock'`
	attempts := map[string]bool{}
	for len(attempts) < 2 {
		var began string
		if err := b.Pool.QueryRow(ctx, waiting).Scan(&began); err != nil {
			t.Fatal(err)
		}
		if began != "" {
			attempts[began] = true
		}
		select {
		case err := <-sealed:
			t.Fatalf("it did not wait: %v", err)
		default:
		}
	}
	if err := holder.Rollback(ctx); err != nil {
		t.Fatal(err)
	}
	if err := <-sealed; err != nil {
		t.Error(err)
	}
}

// TestTrackersAreReapedByTheLeaderOnly reaps and purges with a lease, and with one that has passed to another session.
func TestTrackersAreReapedByTheLeaderOnly(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	opened, err := trackerstore.New(b.Store).OpenTracker(ctx, trackers.OpenRequest{Owner: "o"}, "ann")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := trackerstore.New(b.Store).AddToTracker(ctx, opened.ID, 2*bitfield.Size, ""); err != nil {
		t.Fatal(err)
	}
	old, err := session.New(b.Store).Lead(ctx, b.Session, storetest.LeaseTTL)
	if err != nil {
		t.Fatal(err)
	}
	if err := session.New(b.Store).Resign(ctx, old); err != nil {
		t.Fatal(err)
	}
	lease, err := session.New(b.Store).Lead(ctx, b.Open(), storetest.LeaseTTL)
	if err != nil {
		t.Fatal(err)
	}
	reap := func(by workqueue.Lease) ([]uuid.UUID, []uuid.UUID, error) {
		b.Exec(`UPDATE tracker_service SET active_at = active_at - interval '9 days', reap_at = tranche_now(),
			expired_at = expired_at - interval '9 days'`)
		b.Exec(`UPDATE tracker_batch SET active_at = active_at - interval '9 days'`)
		reaped, _, err := trackerstore.New(b.Store).ReapTrackers(ctx, by)
		return reaped.Expired, reaped.Deleted, err
	}
	if _, _, err := reap(old); !errors.Is(err, workqueue.ErrNotLeader) {
		t.Errorf("by one who leads no longer: %v", err)
	}
	if expired, _, err := reap(lease); err != nil || !slices.Equal(expired, []uuid.UUID{opened.ID}) {
		t.Errorf("expired %v, %v", expired, err)
	}
	if rows, _, err := trackerstore.New(b.Store).PurgeTrackers(ctx, lease); err != nil || rows != 0 {
		t.Errorf("%d rows of a batch that can be asked for were deleted, %v", rows, err)
	}
	if _, deleted, err := reap(lease); err != nil || !slices.Equal(deleted, []uuid.UUID{opened.ID}) {
		t.Errorf("deleted %v, %v", deleted, err)
	}
	if _, _, err := trackerstore.New(b.Store).PurgeTrackers(ctx, old); !errors.Is(err, workqueue.ErrNotLeader) {
		t.Errorf("purged by one who leads no longer: %v", err)
	}
	if rows, more, err := trackerstore.New(b.Store).PurgeTrackers(ctx, lease); err != nil || rows != 3 || more {
		t.Errorf("%d rows were deleted, %v, %v", rows, more, err)
	}
	if n := b.Number(`SELECT count(*) FROM tracker_group`); n != 0 {
		t.Errorf("%d groups are left", n)
	}
}
