package start

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// SealRequest ends the adding of items to an open run.
type SealRequest struct {
	Run    workqueue.RunID
	Expect *int64 // how many items it must have; nil: any number
	Actor  string
	Reason string
}

// Sealed is the outcome of a seal.
type Sealed struct {
	Run       workqueue.RunID
	Items     int64
	Skipped   int64
	Already   bool // it was sealed before: nothing was changed
	Completed bool // nothing was left to do: the seal itself completed the run

	Completions []settle.Completion // of the run, when it was completed
}

// ExpectError is returned for a seal of a run that has not as many items as were expected. It stays open.
type ExpectError struct {
	Run         workqueue.RunID
	Items, Want int64
	Sealed      bool // it was sealed before, with as many items as it has
}

func (e *ExpectError) Error() string {
	fix := "it stays open. Add what is missing, or seal it without an expected number"
	if e.Sealed {
		fix = "it was sealed before, and stays so"
	}
	return fmt.Sprintf("run %s has %s items, and %s were expected; %s", e.Run, control.Grouped(e.Items),
		control.Grouped(e.Want), fix)
}

// sealOpen says that no more items will come. A threshold that is a part of the items is a number of them from now on.
const sealOpen = `
UPDATE batchrun SET sealed_at = tranche_now(), failed_limit = $2
WHERE id = $1 AND opened AND state = 'running' AND sealed_at IS NULL`

// SealRun ends the adding of items to an open run: what is left of them is worked on, and the run completes when
// nothing of it is missing. Sealing again changes nothing. A run that has no items completes at once.
func (s Store) SealRun(ctx context.Context, req SealRequest) (Sealed, error) {
	var out Sealed
	err := s.db.InTxWithin(ctx, database.OperatorTimeout, func(ctx context.Context, tx pgx.Tx) (err error) {
		out, err = req.seal(ctx, tx)
		return err
	})
	if err != nil {
		return Sealed{}, fmt.Errorf("seal run %s: %w", req.Run, err)
	}
	return out, nil
}

func (req *SealRequest) seal(ctx context.Context, tx pgx.Tx) (Sealed, error) {
	o, err := holdOpen(ctx, tx, req.Run, "seal")
	if err != nil {
		return Sealed{}, err
	}
	out := Sealed{Run: o.id, Items: o.items, Skipped: o.skipped, Already: o.sealedAt != nil}
	switch {
	case o.state == "cancelled":
		return out, o.cancelled("seal")
	case req.Expect != nil && *req.Expect != o.items:
		return out, &ExpectError{o.id, o.items, *req.Expect, out.Already}
	case out.Already:
		return out, nil
	}
	if err := o.fill(ctx, tx, o.items/bitfield.Size*bitfield.Size, o.items); err != nil {
		return out, err
	}
	out.Completed, err = tracker.Seal(ctx, tx, uuid.UUID(o.id))
	if _, ended := errors.AsType[*tracker.StateError](err); ended {
		return out, o.cancelled("seal")
	}
	if err != nil {
		return out, err
	}
	if err := o.setSealed(ctx, tx, req); err != nil || !out.Completed {
		return out, err
	}
	out.Completions, err = settle.Complete(ctx, tx, o.id)
	return out, err
}

// lockThresholdOf reads the threshold as it is under the lock of the run: somebody may have set it since.
const lockThresholdOf = `SELECT max_failed FROM batchrun WHERE id = $1 FOR NO KEY UPDATE`

func (o *openState) setSealed(ctx context.Context, tx pgx.Tx, req *SealRequest) error {
	if err := tx.QueryRow(ctx, lockThresholdOf, o.id).Scan(&o.maxFailed); err != nil {
		return fmt.Errorf("read the threshold: %w", err)
	}
	var failedLimit *int64
	limit, limited, err := workqueue.FailedLimit(o.maxFailed, o.items)
	if err != nil {
		return err
	}
	if limited {
		failedLimit = &limit
	}
	tag, err := tx.Exec(ctx, sealOpen, o.id, failedLimit)
	if err != nil {
		return fmt.Errorf("end the adding: %w", err)
	}
	if tag.RowsAffected() != 1 {
		return o.cancelled("seal")
	}
	detail := map[string]any{"items": o.items}
	if req.Reason != "" {
		detail["reason"] = pg.Plain(req.Reason)
	}
	err = ledger.AuditChange(ctx, tx, ledger.Action{Actor: req.Actor, Name: "seal", Run: o.id, Detail: detail,
		Before: map[string]any{"sealed": false}, After: map[string]any{"sealed": true, "items": o.items}})
	if err != nil {
		return err
	}
	return ledger.AddEvent(ctx, tx, o.id, o.generation, workqueue.EventSealed, detail)
}
