package report

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// TimelineRequest selects the period of a timeline.
type TimelineRequest struct {
	Run     workqueue.RunID
	Step    string // empty: every step
	Buckets int    // 1 to MaxBuckets, 0 means DefaultBuckets
	All     bool   // from the beginning instead of the current generation
}

// The number of buckets of a timeline.
const (
	DefaultBuckets = 120
	MaxBuckets     = 1000
)

// Timeline is the progress of a run in equal periods.
type Timeline struct {
	From          time.Time      `json:"from"`
	To            time.Time      `json:"to" doc:"now, or when the run ended"`
	BucketSeconds float64        `json:"bucket_seconds"`
	Steps         []StepTimeline `json:"steps"`
}

// StepTimeline has a number for each bucket.
type StepTimeline struct {
	Step     string     `json:"step"`
	Done     []int64    `json:"done" doc:"items that got their result"`
	Failed   []int64    `json:"failed" doc:"items that failed permanently"`
	Requests []int64    `json:"requests" doc:"that ended, answered or not"`
	P50      []*float64 `json:"p50_ms" doc:"half of the requests took no longer, from sent to recorded; null: none ended"`
	P99      []*float64 `json:"p99_ms" doc:"all but one in a hundred"`
}

const (
	// timelineSpan is a point read. A timeline ends with its run.
	timelineSpan = `
SELECT CASE WHEN $2 THEN 1 ELSE generation END,
    coalesce(CASE WHEN NOT $2 THEN started_at WHEN NOT opened THEN sealed_at END, created_at),
    coalesce(finished_at, tranche_now())
FROM batchrun WHERE id = $1`

	// timelineOf reads the slices of a run in the order of work_slice_block.
	timelineOf = `
SELECT step, least(greatest(floor(date_part('epoch', ended_at - $4) / $5), 0), $6 - 1)::int AS bucket,
    sum(done_items)::bigint, sum(failed_items)::bigint, count(*),
    percentile_cont(0.5) WITHIN GROUP (ORDER BY took), percentile_cont(0.99) WITHIN GROUP (ORDER BY took)
FROM (
    SELECT step, ended_at, done_items, failed_items,
        1000 * greatest(date_part('epoch', ended_at - ` + plane.AskedAt + `), 0) AS took
    FROM work_slice
    WHERE run_id = $1 AND step = ANY ($2) AND generation >= $3 AND state IN ('recorded', 'expired')
        AND ` + plane.AskedAt + ` IS NOT NULL
) s
GROUP BY 1, 2`
)

// Timeline returns the progress of a run. The error wraps ErrNotFound if the run or step does not exist.
func (s Store) Timeline(ctx context.Context, req TimelineRequest) (*Timeline, error) {
	var out *Timeline
	err := s.db.Snapshot(ctx, func(tx pgx.Tx) (err error) {
		out, err = s.timeline(ctx, tx, &req)
		return err
	})
	return out, pg.Wrap(err, "tell how run %s has gone", req.Run)
}

func (s Store) timeline(ctx context.Context, tx pgx.Tx, req *TimelineRequest) (*Timeline, error) {
	g, err := database.Kept[plane.GraphCache](s.db).Of(ctx, tx, req.Run)
	if err != nil {
		return nil, err
	}
	view, err := g.View(req.Step)
	if err != nil {
		return nil, err
	}
	steps := view.Reads
	if view.Step != plane.OverAll {
		steps = []workqueue.Step{view.Step}
	}
	out := &Timeline{}
	var oldest workqueue.Generation
	err = tx.QueryRow(ctx, timelineSpan, req.Run, req.All).Scan(&oldest, &out.From, &out.To)
	if err != nil {
		return nil, err
	}
	n := min(cmp.Or(max(req.Buckets, 0), DefaultBuckets), MaxBuckets)
	out.BucketSeconds = max(out.To.Sub(out.From), time.Second).Seconds() / float64(n)
	for _, step := range steps {
		out.Steps = append(out.Steps, StepTimeline{
			Step: g.Steps[step].Name, Done: make([]int64, n), Failed: make([]int64, n), Requests: make([]int64, n),
			P50: make([]*float64, n), P99: make([]*float64, n),
		})
	}
	rows := pg.Rows(ctx, tx, timelineOf, req.Run, steps, oldest, out.From, out.BucketSeconds, n)
	return out, fillTimeline(rows, steps, out.Steps)
}

func fillTimeline(rows pgx.Rows, steps []workqueue.Step, into []StepTimeline) error {
	var step workqueue.Step
	var bucket int
	var done, failed, requests int64
	var p50, p99 *float64
	return pg.Each(rows, []any{&step, &bucket, &done, &failed, &requests, &p50, &p99}, func() {
		t := &into[slices.Index(steps, step)]
		t.Done[bucket], t.Failed[bucket], t.Requests[bucket] = done, failed, requests
		t.P50[bucket], t.P99[bucket] = p50, p99 // allocated for each row
	})
}
