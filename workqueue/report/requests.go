package report

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// RequestReport is the chunks sent to services, in all generations.
type RequestReport struct {
	Count         int64         `json:"count"`
	Items         int64         `json:"items" doc:"in all of them; an item counts as often as it was requested"`
	MeanItems     float64       `json:"mean_items" doc:"in one of them"`
	P50Seconds    float64       `json:"p50_seconds" doc:"half took no longer; by services, or until recorded"`
	P99Seconds    float64       `json:"p99_seconds"`
	ByCause       []CauseReport `json:"by_cause" doc:"why they were sent"`
	TriedAgain    int64         `json:"tried_again" doc:"items that a step sent more than once, reruns included"`
	Retries       int64         `json:"retries" doc:"requests that repeat one that failed or was not answered"`
	LostToStreams int64         `json:"lost_to_streams" doc:"chunks reissued because a stream was lost"`
	LostToNodes   int64         `json:"lost_to_nodes" doc:"chunks reissued because their node was gone or stopped"`
}

// CauseReport is the requests sent for one cause.
type CauseReport struct {
	Cause    workqueue.Cause `json:"cause"`
	Requests int64           `json:"requests"`
	Items    int64           `json:"items"`
}

const requestsByCause = `
SELECT cause, count(*), sum(bit_count(mask))::bigint FROM work_slice
WHERE run_id = $1 AND ` + plane.AskedAt + ` IS NOT NULL
GROUP BY cause ORDER BY count(*) DESC, cause`

const lostSlices = `
SELECT count(*) FILTER (WHERE error_code IN ('streams', 'unsent', 'lost')),
    count(*) FILTER (WHERE error_code IN ('session', 'handback'))
FROM work_slice WHERE run_id = $1 AND state = 'expired'`

func (r *RunReport) readRequests(ctx context.Context, tx pgx.Tx) (err error) {
	q := &r.Requests
	q.ByCause, err = pg.Collect(ctx, tx, pgx.RowToStructByPos[CauseReport], requestsByCause, r.ID)
	if err != nil {
		return err
	}
	for _, c := range q.ByCause {
		q.Count += c.Requests
		q.Items += c.Items
		if c.Cause.ItemsAtFault() || c.Cause == workqueue.CauseBreaker || c.Cause == workqueue.CauseThrottled ||
			c.Cause == workqueue.CauseSilence {
			q.Retries += c.Requests
		}
	}
	if q.Count > 0 {
		q.MeanItems = float64(q.Items) / float64(q.Count)
	}
	return tx.QueryRow(ctx, lostSlices, r.ID).Scan(&q.LostToStreams, &q.LostToNodes)
}

// tookSeconds is an SQL expression on work_slice: how long its service took.
const tookSeconds = `coalesce(took,
    extract(epoch FROM ended_at - coalesce(delivered_at, ` + plane.AskedAt + `))::float8)`

const requestTimes = `
SELECT coalesce(percentile_cont(0.5) WITHIN GROUP (ORDER BY took), 0),
    coalesce(percentile_cont(0.99) WITHIN GROUP (ORDER BY took), 0)
FROM (SELECT greatest(` + tookSeconds + `, 0) AS took FROM work_slice WHERE run_id = $1 AND state = 'recorded') t`

func (r *RunReport) readTimes(ctx context.Context, tx pgx.Tx) error {
	return tx.QueryRow(ctx, requestTimes, r.ID).Scan(&r.Requests.P50Seconds, &r.Requests.P99Seconds)
}

// What an earlier request of the same step had, block by block in request order. The first request of an item was cut
// from ready items in the first generation.
const triedAgain = `
SELECT coalesce(sum(again), 0)::bigint FROM (
    SELECT bit_count(bit_or(mask & earlier)) AS again FROM (
        SELECT block, mask, coalesce(bit_or(mask) OVER (PARTITION BY step, block
            ORDER BY ` + plane.AskedAt +
	`, id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), B'0'::bit(8192)) AS earlier
        FROM work_slice WHERE run_id = $1 AND ` + plane.AskedAt + ` IS NOT NULL AND block IN (
            SELECT block FROM work_slice WHERE run_id = $1 AND (cause <> 'ready' OR generation > 1))
    ) s GROUP BY block
) t`

func (r *RunReport) readTriedAgain(ctx context.Context, tx pgx.Tx) error {
	return tx.QueryRow(ctx, triedAgain, r.ID).Scan(&r.Requests.TriedAgain)
}

// WorkerReport is the work of one service or endpoint.
type WorkerReport struct {
	Name           string  `json:"name"`
	Requests       int64   `json:"requests" doc:"that it answered"`
	Items          int64   `json:"items"`
	SecondsPerItem float64 `json:"seconds_per_item"`
	P99Seconds     float64 `json:"p99_seconds" doc:"of a request"`
}

// maxWorkers bounds the named services and endpoints. Each start of a service makes a name.
const maxWorkers = 10

const slowestWorkers = `
SELECT w.name, count(*), sum(w.items)::bigint, sum(w.took) / greatest(sum(w.items), 1),
    percentile_cont(0.99) WITHIN GROUP (ORDER BY w.took)
FROM (
    SELECT CASE WHEN $2 THEN coalesce(s.service, '') ELSE coalesce(s.endpoint, st.endpoint) END AS name,
        bit_count(s.mask) AS items, greatest(` + tookSeconds + `, 0) AS took
    FROM work_slice s JOIN run_step st USING (run_id, step)
    WHERE s.run_id = $1 AND s.state = 'recorded'
) w
WHERE w.name <> ''
GROUP BY w.name ORDER BY 4 DESC, w.name LIMIT $3`

func (r *RunReport) readWorkers(ctx context.Context, tx pgx.Tx) (err error) {
	for _, list := range []struct {
		services bool
		to       *[]WorkerReport
	}{{true, &r.Services}, {false, &r.Endpoints}} {
		*list.to, err = pg.Collect(ctx, tx, pgx.RowToStructByPos[WorkerReport], slowestWorkers, r.ID, list.services,
			maxWorkers)
		if err != nil {
			return err
		}
	}
	return nil
}

// bestWindow is the period of the best rate; shorter runs use their duration.
const bestWindow = 10 * time.Second

const maxBuckets = 20_000

const answersOverTime = `
SELECT floor(extract(epoch FROM ended_at) / $2::float8)::bigint AS bucket, sum(bit_count(mask))::bigint FROM work_slice
WHERE run_id = $1 AND state = 'recorded' GROUP BY 1 ORDER BY 1`

func (r *RunReport) readRates(ctx context.Context, tx pgx.Tx) error {
	var settled int64
	for i := range r.Generations {
		g := &r.Generations[i]
		r.Seconds += g.Seconds
		r.PausedSeconds += g.PausedSeconds
		settled += g.Done + g.Failed
	}
	active := r.Seconds - r.PausedSeconds
	if active <= 0 {
		return nil
	}
	r.Rate = float64(settled) / active
	width := time.Second
	if span := r.At.Sub(r.CreatedAt); span > maxBuckets*width {
		width = span / maxBuckets
	}
	window := rateWindowSum{buckets: max(int64(bestWindow/width), 1)}
	var bucket, items int64
	err := pg.Each(pg.Rows(ctx, tx, answersOverTime, r.ID, width.Seconds()),
		[]any{&bucket, &items}, func() { window.add(bucket, items) })
	taken := min(float64(window.buckets)*width.Seconds(), active)
	r.BestRate = max(float64(window.best)/taken, r.Rate)
	return err
}

type rateWindowSum struct {
	buckets int64
	at      []int64
	counts  []int64
	sum     int64
	best    int64
}

func (w *rateWindowSum) add(bucket, items int64) {
	w.at, w.counts, w.sum = append(w.at, bucket), append(w.counts, items), w.sum+items
	for w.at[0] <= bucket-w.buckets {
		w.sum -= w.counts[0]
		w.at, w.counts = w.at[1:], w.counts[1:]
	}
	w.best = max(w.best, w.sum)
}
