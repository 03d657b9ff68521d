package control

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// EarlierPayload is what an item carried until it was corrected.
type EarlierPayload struct {
	Generation workqueue.Generation `json:"generation" doc:"of the correction: what is older was made of this payload"`
	Payload    json.RawMessage      `json:"payload"`
	At         time.Time            `json:"at" doc:"when it was corrected"`
	Actor      string               `json:"actor" doc:"by whom"`
	Reason     string               `json:"reason,omitempty"`
}

// By primary keys.
const earlierPayloads = `
SELECT w.generation, w.payload, c.at, c.actor, c.reason
FROM work_correction w JOIN run_correction c USING (run_id, generation)
WHERE w.run_id = $1 AND w.ordinal = $2 ORDER BY w.generation DESC`

// EarlierPayloads reads what an item carried until it was corrected, the newest first.
func EarlierPayloads(ctx context.Context, tx pgx.Tx, run workqueue.RunID, item workqueue.Ordinal,
) ([]EarlierPayload, error) {
	all, err := pg.Collect(ctx, tx, pgx.RowToStructByPos[EarlierPayload], earlierPayloads, run, item)
	if err != nil {
		return nil, fmt.Errorf("read the corrections of item %d: %w", item, err)
	}
	return all, nil
}
