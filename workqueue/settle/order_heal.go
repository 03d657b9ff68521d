package settle

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// Send locks the blocks of those who are next, and writes.
func (m *LaneMoves) Send(ctx context.Context, tx pgx.Tx, run workqueue.RunID) error {
	batch := &pgx.Batch{}
	var rows []plane.BlockID
	for _, id := range lockOrder(m.Released) {
		rows = append(rows, plane.BlockID{Run: run, Step: id.Step, Block: id.Block})
	}
	batch.Queue(lockBlocks, plane.Columns(rows)...)
	m.queue(batch, run)
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("move on lines of run %s: %w", run, err)
	}
	return nil
}
