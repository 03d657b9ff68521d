package service

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield/tracker"
)

// Seal says that no more items will come. It reports true when this call completed the batch, which it does when
// nothing is pending, also for a batch without items. Sealing again changes nothing; an expired batch is a
// *tracker.StateError.
func Seal(ctx context.Context, tx pgx.Tx, batch uuid.UUID) (completed bool, err error) {
	var stale bool
	if err := tx.QueryRow(ctx, checkSQL, batch).Scan(&stale); err != nil {
		return false, notFound("seal", batch, err)
	}
	completed, err = tracker.Seal(ctx, tx, batch)
	if err != nil {
		return false, shown(err)
	}
	after := &pgx.Batch{}
	if completed {
		queueEnd(after, batch, EventCompleted)
	} else {
		after.Queue(touchSQL, batch)
	}
	return completed, wrap("seal", batch, tx.SendBatch(ctx, after).Close())
}

// shown says expired where package tracker says cancelled: nothing else cancels a batch of the service.
func shown(err error) error {
	if state, ok := errors.AsType[*tracker.StateError](err); ok && state.State == tracker.StateCancelled {
		e := *state
		e.State = StateExpired
		return &e
	}
	return err
}
