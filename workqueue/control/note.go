package control

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

const runExists = `SELECT true FROM batchrun WHERE id = $1 FOR KEY SHARE`

// Note writes down what somebody has to say of a run, for all who look at it. The error wraps ErrNotFound when there is
// no such run.
func (s Store) Note(ctx context.Context, run workqueue.RunID, text, actor string) error {
	err := s.db.InTxWithin(ctx, database.OperatorTimeout, func(ctx context.Context, tx pgx.Tx) error {
		var there bool
		if err := tx.QueryRow(ctx, runExists, run).Scan(&there); errors.Is(err, pgx.ErrNoRows) {
			return workqueue.ErrNotFound
		} else if err != nil {
			return err
		}
		return ledger.AuditChange(ctx, tx, ledger.Action{
			Actor: actor, Name: "note", Run: run, Detail: map[string]any{"reason": pg.Plain(text)},
		})
	})
	if err != nil {
		return fmt.Errorf("note of run %s: %w", run, err)
	}
	return nil
}
