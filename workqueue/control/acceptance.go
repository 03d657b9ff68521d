package control

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// Acceptance is that somebody has accepted a failure.
type Acceptance struct {
	At     time.Time `json:"at"`
	By     string    `json:"by"`
	Reason string    `json:"reason"`
}

// Of those who have accepted an item, the last. The primary keys of work_block and run_acceptance.
const acceptancesOf = `
SELECT DISTINCT ON (b.step) b.step, a.at, a.actor, a.reason
FROM work_block b JOIN run_acceptance a USING (run_id, step, block)
WHERE b.run_id = $1 AND b.step = ANY ($4) AND b.block = $2 AND get_bit(b.accepted, $3) = 1 AND get_bit(a.items, $3) = 1
ORDER BY b.step, a.id DESC`

// AcceptancesOf returns who has accepted the failures of an item, by step.
func AcceptancesOf(ctx context.Context, tx pgx.Tx, run workqueue.RunID, item workqueue.Ordinal, steps []workqueue.Step,
) (map[workqueue.Step]*Acceptance, error) {
	block, bit := item.Block()
	rows := pg.Rows(ctx, tx, acceptancesOf, run, block, bit, steps)
	all := map[workqueue.Step]*Acceptance{}
	var step workqueue.Step
	var a Acceptance
	_, err := pgx.ForEachRow(rows, []any{&step, &a.At, &a.By, &a.Reason}, func() error {
		one := a
		all[step] = &one
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read who accepted item %d: %w", item, err)
	}
	return all, nil
}
