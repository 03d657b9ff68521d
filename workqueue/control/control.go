// Package control executes operators' and thresholds' actions on runs: hold, resume, approve, cancel, and change
// settings. It also reads what operators check before they approve a gated step, in one snapshot. Changes take
// effect at the next claim. Requests in flight are recorded anyway, except after a cancel: their replies are stale.
package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/pace"
)

// Store controls runs. It is safe for concurrent use.
type Store struct{ db *database.DB }

// New returns a store on db.
func New(db *database.DB) Store { return Store{db: db} }

const runExists = `SELECT true FROM batchrun WHERE id = $1 FOR KEY SHARE`

// Note adds an operator's note to a run. The error wraps ErrNotFound if the run does not exist.
func (s Store) Note(ctx context.Context, run workqueue.RunID, text, actor string) error {
	err := s.db.InTxWithin(ctx, database.OperatorTimeout, func(ctx context.Context, tx pgx.Tx) error {
		if _, err := pg.One(ctx, tx, pgx.RowTo[bool], runExists, run); err != nil {
			return pg.NoRow(err, workqueue.ErrNotFound)
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{
			Actor: actor, Name: "note", Run: run, Detail: map[string]any{"reason": pg.Plain(text)},
		})
	})
	return pg.Wrap(err, "note of run %s", run)
}

// ChunkOfMoment returns the chunk size that a claim of the step would use now, before the effect of large payloads.
func ChunkOfMoment(ctx context.Context, tx pgx.Tx, step *StepSettings) (int, error) {
	of := plane.Chunking{Chunk: step.Chunk, Auto: step.ChunkAuto}
	var taught, rate float64
	err := tx.QueryRow(ctx, pace.PacesOfEndpoint, step.Endpoint).Scan(&of.Learned, &of.Limit, &taught, &rate)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return 0, fmt.Errorf("read the pace of endpoint %s: %w", step.Endpoint, err)
	}
	of.Rates = [...]float64{step.Rate, rate, 0}
	if step.InFlightAuto {
		of.Rates[2] = taught
	}
	return of.Size(), nil
}

// EarlierPayload is an item's payload before a correction.
type EarlierPayload struct {
	Generation workqueue.Generation `json:"generation" doc:"of the correction: what is older was made of this payload"`
	Payload    json.RawMessage      `json:"payload" doc:"null: it cannot be decrypted"`
	At         time.Time            `json:"at" doc:"when it was corrected"`
	Actor      string               `json:"actor" doc:"by whom"`
	Reason     string               `json:"reason,omitempty"`
}

// By primary keys.
const earlierPayloads = `
SELECT w.generation, w.payload, c.at, c.actor, c.reason
FROM work_correction w JOIN run_correction c USING (run_id, generation)
WHERE w.run_id = $1 AND w.ordinal = $2 ORDER BY w.generation DESC`

// EarlierPayloads reads an item's payloads before corrections, newest first.
func EarlierPayloads(ctx context.Context, tx pgx.Tx, seal *database.Seal, run workqueue.RunID, item workqueue.Ordinal,
	key string,
) ([]EarlierPayload, error) {
	all, err := pg.Collect(ctx, tx, pgx.RowToStructByPos[EarlierPayload], earlierPayloads, run, item)
	for i := range all {
		if err == nil {
			all[i].Payload, err = seal.ViewText(database.PayloadOf(key), all[i].Payload)
		}
	}
	return all, pg.Wrap(err, "read the corrections of item %d", item)
}
