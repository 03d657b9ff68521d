package report

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// CorrectedReport is what became of the items whose payloads were corrected. Items is Made, Kept, Failed and
// Unfinished.
type CorrectedReport struct {
	Items      int64        `json:"items" doc:"that have another payload than they came with"`
	Made       int64        `json:"made" doc:"results that were made since, of corrected data"`
	Kept       int64        `json:"kept" doc:"results of before: no part changed that the step sees"`
	Failed     int64        `json:"failed"`
	Unfinished int64        `json:"unfinished"`
	Times      []Correction `json:"times" doc:"oldest first"`
}

// Correction is one time at which items were given other payloads.
type Correction struct {
	Generation workqueue.Generation `json:"generation" doc:"that it opened"`
	At         time.Time            `json:"at"`
	Actor      string               `json:"actor"`
	Reason     string               `json:"reason,omitempty"`
	Cascade    bool                 `json:"cascade" doc:"later steps were redone in any case"`
	Items      int64                `json:"items"`
}

const (
	// By run_correction's primary key.
	readCorrections = `
SELECT generation, at, actor, reason, cascade, items FROM run_correction WHERE run_id = $1 ORDER BY generation`

	// What was corrected, with the newest part that a step has for it which no other one needs.
	correctedItems = `
WITH fixed AS (
    SELECT ordinal, max(generation) AS since FROM work_correction WHERE run_id = $1 GROUP BY ordinal
), planes AS (
    SELECT o.block, o.settled & ~o.failed AS done, o.failed
    FROM batchrun r CROSS JOIN LATERAL (` + plane.OutcomePlanes + `) o WHERE r.id = $1
)
SELECT count(*), count(*) FILTER (WHERE i.done AND i.made),
    count(*) FILTER (WHERE i.done AND NOT i.made), count(*) FILTER (WHERE i.failed)
FROM fixed f JOIN planes p ON p.block = f.ordinal >> 13
CROSS JOIN LATERAL (SELECT get_bit(p.done, f.ordinal & 8191) = 1 AS done,
    get_bit(p.failed, f.ordinal & 8191) = 1 AS failed,
    EXISTS (SELECT FROM work_part w WHERE w.run_id = $1 AND w.ordinal = f.ordinal AND w.generation >= f.since
        AND w.step IN (SELECT s.step FROM run_step s WHERE s.run_id = $1 AND NOT EXISTS (
            SELECT FROM run_step t WHERE t.run_id = $1 AND s.step = ANY (t.needs)))) AS made) i`
)

// readCorrected accounts for corrections; nil when there were none.
func readCorrected(ctx context.Context, tx pgx.Tx, run workqueue.RunID) (*CorrectedReport, error) {
	times, err := pg.Collect(ctx, tx, pgx.RowToStructByPos[Correction], readCorrections, run)
	if err != nil || len(times) == 0 {
		return nil, err
	}
	r := &CorrectedReport{Times: times}
	err = tx.QueryRow(ctx, correctedItems, run).Scan(&r.Items, &r.Made, &r.Kept, &r.Failed)
	r.Unfinished = r.Items - r.Made - r.Kept - r.Failed
	return r, err
}
