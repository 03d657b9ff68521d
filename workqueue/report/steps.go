package report

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// StepReport is the account of one step. Items is Done, Failed, Skipped and Missing.
type StepReport struct {
	Name        string         `json:"name"`
	Kind        workqueue.Kind `json:"kind" enum:"endpoint,request,http,sql,local"`
	Endpoint    string         `json:"endpoint" doc:"or what else was asked, like http:HOST, sql:SOURCE or local:FUNCTION"`
	Needs       []string       `json:"needs,omitempty"`
	Optional    bool           `json:"optional,omitempty" doc:"what it failed is no failure of the item"`
	Result      bool           `json:"result" doc:"no other step needs it: its parts are the results of the run"`
	Items       int64          `json:"items"`
	Done        int64          `json:"done"`
	Failed      int64          `json:"failed"`
	Skipped     int64          `json:"skipped" doc:"left out: a step that it needs failed for them"`
	Missing     int64          `json:"missing"`
	Requests    int64          `json:"requests" doc:"in all generations"`
	Asked       int64          `json:"asked" doc:"items in these requests; one counts as often as it was asked for"`
	P50Seconds  float64        `json:"p50_seconds" doc:"half of the requests took no longer"`
	P99Seconds  float64        `json:"p99_seconds"`
	ResultBytes int64          `json:"result_bytes" doc:"of all results that were recorded, about"`
	FirstAt     *time.Time     `json:"first_at,omitempty" doc:"when the first request was sent"`
	LastAt      *time.Time     `json:"last_at,omitempty" doc:"when the last answer was recorded"`
}

// A range of work_block's primary key and one of work_slice_block for each step.
const stepReports = `
SELECT s.name, s.kind, s.endpoint, ` + inspect.NeedNames + `, s.optional,
    NOT EXISTS (SELECT 1 FROM run_step n WHERE n.run_id = s.run_id AND s.step = ANY (n.needs)),
    r.items, b.done, b.failed, b.skipped, greatest(r.items - b.done - b.failed - b.skipped, 0),
    w.requests, w.asked, w.p50, w.p99, b.result_bytes, w.first_at, w.last_at
FROM run_step s JOIN batchrun r ON r.id = s.run_id
CROSS JOIN LATERAL (
    SELECT coalesce(sum(bit_count(done)), 0)::bigint AS done, coalesce(sum(bit_count(failed)), 0)::bigint AS failed,
        coalesce(sum(bit_count(skipped)), 0)::bigint AS skipped, coalesce(sum(result_bytes), 0)::bigint AS result_bytes
    FROM work_block WHERE run_id = s.run_id AND step = s.step
) b
CROSS JOIN LATERAL (
    SELECT count(` + plane.AskedAt + `) AS requests,
        coalesce(sum(bit_count(mask)) FILTER (WHERE ` + plane.AskedAt + ` IS NOT NULL), 0)::bigint AS asked,
        coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY greatest(` + tookSeconds + `, 0))
            FILTER (WHERE state = 'recorded'), 0) AS p50,
        coalesce(percentile_cont(0.99) WITHIN GROUP (ORDER BY greatest(` + tookSeconds + `, 0))
            FILTER (WHERE state = 'recorded'), 0) AS p99,
        min(` + plane.AskedAt + `) AS first_at, max(ended_at) FILTER (WHERE state = 'recorded') AS last_at
    FROM work_slice WHERE run_id = s.run_id AND step = s.step
) w
WHERE s.run_id = $1
ORDER BY s.step`

func (r *RunReport) readSteps(ctx context.Context, tx pgx.Tx) (err error) {
	r.Steps, err = pg.Collect(ctx, tx, pgx.RowToStructByPos[StepReport], stepReports, r.ID)
	return err
}
