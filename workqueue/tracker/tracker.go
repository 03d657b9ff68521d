// Package tracker keeps trackers: counts of what others have acknowledged.
package tracker

import (
	"context"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/bitfield/tracker/service"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Store is the database for trackers. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

// OpenTracker opens a batch of the tracker service for actor. See [service.Open]. What was opened before is not audited
// again.
func (s Store) OpenTracker(ctx context.Context, r service.OpenRequest, actor string) (
	opened service.Opened, err error,
) {
	r.CreatedBy = pg.Plain(actor)
	err = s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		opened, err = service.Open(ctx, tx, r)
		if err != nil || opened.Existing {
			return err
		}
		return auditTracker(ctx, tx, actor, "tracker_open", opened.ID,
			map[string]any{"owner": r.Owner, "key": r.Key, "webhook": r.Webhook.Origin()})
	})
	return opened, err
}

func auditTracker(ctx context.Context, tx pgx.Tx, actor, name string, batch uuid.UUID, after map[string]any) error {
	return ledger.AuditChange(ctx, tx, ledger.Action{Actor: actor, Name: name, Subject: batch.String(), After: after})
}

// trackerTx is [database.DB.InTx] for what may meet, or be, an add or an ack of a billion items: these write a row for
// each of 122,000 groups, and hold the batch for seconds. The others come after them.
func (s Store) trackerTx(ctx context.Context, f func(ctx context.Context, tx pgx.Tx) error) error {
	return s.db.InTxWithin(database.Patiently(ctx, database.OperatorTimeout), database.OperatorTimeout, f)
}

// AddToTracker adds n items to a tracker, once for a key. See [service.Add]. It is not audited: there are too many.
func (s Store) AddToTracker(ctx context.Context, batch uuid.UUID, n int64, key string) (
	added service.Added, err error,
) {
	err = s.trackerTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		added, err = service.Add(ctx, tx, batch, n, key)
		return err
	})
	return added, err
}

// AckTrackers acknowledges items of trackers in one transaction, all or none. See [service.Ack]. It is not audited:
// there are too many.
func (s Store) AckTrackers(ctx context.Context, acks []service.BatchAck) (acked []service.Acked, err error) {
	err = s.trackerTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		acked, err = service.Ack(ctx, tx, acks)
		return err
	})
	return acked, err
}

// SealTracker seals a tracker for actor, and reports whether that completed it. See [service.Seal].
func (s Store) SealTracker(ctx context.Context, batch uuid.UUID, actor string) (completed bool, err error) {
	err = s.trackerTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if completed, err = service.Seal(ctx, tx, batch); err != nil {
			return err
		}
		return auditTracker(ctx, tx, actor, "tracker_seal", batch, map[string]any{"completed": completed})
	})
	return completed, err
}

// DeleteTracker makes a tracker disappear, whatever its state. See [service.Delete].
func (s Store) DeleteTracker(ctx context.Context, batch uuid.UUID, actor string) error {
	return s.trackerTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := service.Delete(ctx, tx, batch); err != nil {
			return err
		}
		return auditTracker(ctx, tx, actor, "tracker_delete", batch, nil)
	})
}

// Tracker reads a tracker and counts its items. See [service.Get].
func (s Store) Tracker(ctx context.Context, batch uuid.UUID) (service.Info, error) {
	return service.Get(ctx, s.db.Pool, batch)
}

// Trackers lists trackers. See [service.List].
func (s Store) Trackers(ctx context.Context, f service.Filter) ([]service.Summary, error) {
	return service.List(ctx, s.db.Pool, f)
}

// TrackerGroups lists groups of a tracker. See [service.GroupStates].
func (s Store) TrackerGroups(ctx context.Context, batch uuid.UUID, from, limit int) ([]service.GroupState, error) {
	return service.GroupStates(ctx, s.db.Pool, batch, from, limit)
}

// TrackerMissing lists what is pending in a tracker. See [service.Missing].
func (s Store) TrackerMissing(ctx context.Context, batch uuid.UUID, from service.Position, limit int) (
	[]tracker.Range, *service.Position, error,
) {
	return service.Missing(ctx, s.db.Pool, batch, from, limit)
}
