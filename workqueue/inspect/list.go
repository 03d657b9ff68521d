package inspect

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// RunFilter selects runs of the context's [workqueue.Scope].
type RunFilter struct {
	States   []string        `query:"state" enum:"loading,running,paused,completed,cancelled" doc:"only runs in one of these"`
	Words    []string        `json:"-"` // each in the name, plan, source or starter, in any case, or the start of the ID
	Result   string          `query:"result" enum:"failed,ok" doc:"only completed runs, with failures that no one accepted or none"`
	Plan     string          `json:"-"` // only runs of this plan
	Version  int             `json:"-"` // of the plan; 0: any
	Endpoint string          `query:"endpoint" maxLength:"320" doc:"only runs with a step that calls this"`
	Since    time.Time       `query:"since" doc:"only runs created then or later"`
	Until    time.Time       `query:"until" doc:"only runs created before"`
	Schedule string          `query:"schedule" maxLength:"100" doc:"only runs that this schedule started"`
	Before   workqueue.RunID `json:"-"`                                             // only runs that follow this one in the list; zero: from its first
	Limit    int             `query:"limit" minimum:"1" maximum:"500" default:"50"` // 0 means DefaultRuns

	Sort      Sort     `query:"sort" enum:"newest,name,items,failed,time" default:"newest" doc:"name: or plan; items, failed, time: the most first"`
	Fold      bool     `query:"fold" doc:"of each schedule only the newest run, with the last 20 in past; goes with before and limit only"`
	Attention *Stalled `json:"-"` // only runs that wait for a person: paused, at an approval, late, or stalled as it says
}

// Sort is the order of a list of runs.
type Sort string

// Sorts. Runs that are equal follow by age, the newest first; by name the oldest.
const (
	SortNewest Sort = "newest" // also ""
	SortName   Sort = "name"   // or plan, if the run has no name
	SortItems  Sort = "items"  // most first
	SortFailed Sort = "failed" // most failed items first
	SortTime   Sort = "time"   // longest first
)

// Stalled names the runs that do not continue until a person acts, as far as health knows them.
type Stalled struct {
	All       bool
	Runs      []workqueue.RunID
	Endpoints []string // every run that has work for one of them
}

// PastRun is one of the last runs of a schedule.
type PastRun struct {
	ID       workqueue.RunID `json:"id"`
	State    string          `json:"state" enum:"loading,running,paused,completed,cancelled"`
	Items    int64           `json:"items"`
	Failed   int64           `json:"failed" doc:"once it has completed"`
	Accepted int64           `json:"accepted,omitempty"`
	Seconds  float64         `json:"seconds,omitempty" doc:"how long it took; absent until it ends"`
}

// The number of runs in one list.
const (
	DefaultRuns = 50
	MaxRuns     = 500
)

// rateWindow is the period over which the rate is measured.
const rateWindow = 10 * time.Second

// The locale decides case beyond ASCII.
const runFilter = `
    ($1::text[] IS NULL OR ` + shownState + ` = ANY ($1))
    AND ($4 = '' OR r.plan = $4) AND ($5 = 0 OR r.plan_version = $5)
    AND ($6::timestamptz IS NULL OR r.created_at >= $6) AND ($7::timestamptz IS NULL OR r.created_at < $7)
    AND NOT EXISTS (SELECT 1 FROM unnest($8::text[]) AS w (word)
        WHERE position(w.word IN concat_ws(E'\n', r.name, r.plan, r.source, r.created_by)) = 0
            AND position(lower(w.word) IN lower(concat_ws(E'\n', r.name, r.plan, r.source, r.created_by))) = 0
            AND NOT starts_with(r.id::text, lower(w.word))
            AND (length(w.word) < 4 OR position(lower(w.word) IN r.id::text) = 0))
    AND ($9 = '' OR EXISTS (SELECT 1 FROM run_step st WHERE st.run_id = r.id AND st.endpoint = $9))
    AND ($10 = '' OR r.state = 'completed' AND (r.failed > r.accepted) = ($10 = 'failed'))
    AND ($11 = '' OR r.schedule = $11) AND ($12::text[] IS NULL OR r.namespace = ANY ($12))`

// A page of any list but the newest first begins behind the run $2, wherever that is now. What sorts runs that have
// not completed is read of each of them (batchrun_uncompleted); of the rest, from the index of the order.
const (
	// The primary key, backwards; each run left out costs a row.
	listRuns = `
WITH chosen AS MATERIALIZED (
    SELECT * FROM batchrun r WHERE ` + runFilter + ` AND ($2::uuid IS NULL OR r.id < $2) ORDER BY r.id DESC LIMIT $3
)` + runSummaries + `
ORDER BY r.id DESC`

	// batchrun_label
	listByName = `
WITH chosen AS MATERIALIZED (
    SELECT *, coalesce(name, plan) AS label FROM batchrun r WHERE ` + runFilter + `
        AND ($2::uuid IS NULL OR (coalesce(r.name, r.plan), r.id)
            > ((SELECT coalesce(c.name, c.plan) FROM batchrun c WHERE c.id = $2), $2))
    ORDER BY coalesce(r.name, r.plan), r.id LIMIT $3
)` + runSummaries + `
ORDER BY label, r.id`

	// batchrun_items
	listByItems = `
WITH chosen AS MATERIALIZED (
    SELECT * FROM batchrun r WHERE ` + runFilter + `
        AND ($2::uuid IS NULL OR (r.items, r.id) < ((SELECT c.items FROM batchrun c WHERE c.id = $2), $2))
    ORDER BY r.items DESC, r.id DESC LIMIT $3
)` + runSummaries + `
ORDER BY r.items DESC, r.id DESC`

	// batchrun_failures
	listByFailed = `
WITH known AS NOT MATERIALIZED (SELECT r.*, r.failed AS by FROM batchrun r WHERE r.state = 'completed'),
counted AS NOT MATERIALIZED (
    SELECT r.*, c.failed AS by FROM batchrun r CROSS JOIN LATERAL (` + plane.OutcomeOfRun + `) c
    WHERE r.state <> 'completed'
),` + sortedRuns

	// batchrun_time
	listByTime = `
WITH known AS NOT MATERIALIZED (
    SELECT r.*, r.finished_at - coalesce(r.started_at, r.created_at) AS by FROM batchrun r WHERE r.state = 'completed'),
counted AS NOT MATERIALIZED (
    SELECT r.*, coalesce(r.finished_at, tranche_now()) - coalesce(r.started_at, r.created_at) AS by FROM batchrun r
    WHERE r.state <> 'completed'
),` + sortedRuns

	sortedRuns = `
behind AS (SELECT by FROM known WHERE id = $2 UNION ALL SELECT by FROM counted WHERE id = $2),
chosen AS MATERIALIZED (
    SELECT * FROM (
        (SELECT * FROM known r WHERE ` + runFilter + `
            AND ($2::uuid IS NULL OR (r.by, r.id) < ((SELECT by FROM behind), $2))
            ORDER BY r.by DESC, r.id DESC LIMIT $3)
        UNION ALL
        (SELECT * FROM counted r WHERE ` + runFilter + `
            AND ($2::uuid IS NULL OR (r.by, r.id) < ((SELECT by FROM behind), $2))
            ORDER BY r.by DESC, r.id DESC LIMIT $3)
    ) r ORDER BY r.by DESC, r.id DESC LIMIT $3
)` + runSummaries + `
ORDER BY r.by DESC, r.id DESC`

	// batchrun_unscheduled, and batchrun_schedule for each schedule.
	listFolded = `
WITH chosen AS MATERIALIZED (
    SELECT * FROM (
        (SELECT * FROM batchrun r WHERE r.schedule IS NULL AND ($1::uuid IS NULL OR r.id < $1)
            AND ($3::text[] IS NULL OR r.namespace = ANY ($3)) ORDER BY r.id DESC LIMIT $2)
        UNION ALL
        SELECT r.* FROM schedule s CROSS JOIN LATERAL (
            SELECT * FROM batchrun r WHERE r.schedule = s.name ORDER BY r.id DESC LIMIT 1) r
        WHERE ($1::uuid IS NULL OR r.id < $1) AND ($3::text[] IS NULL OR s.namespace = ANY ($3))
    ) r ORDER BY r.id DESC LIMIT $2
)` + runSummaries + `
ORDER BY r.id DESC`

	// batchrun_active
	listAttention = `
WITH chosen AS MATERIALIZED (
    SELECT * FROM batchrun r
    WHERE r.state IN ('loading', 'running') AND ` + runFilter + ` AND ($2::uuid IS NULL OR r.id < $2)
        AND (r.hold IS NOT NULL OR r.sealed_at IS NULL AND r.overdue_at IS NOT NULL OR r.state = 'running' AND (
            $13 OR r.at_risk IS NOT NULL OR r.id = ANY ($14)
            OR EXISTS (SELECT FROM run_step st WHERE st.run_id = r.id AND (st.gate_since IS NOT NULL
                OR st.endpoint = ANY ($15) AND ` + hasWork + `))))
    ORDER BY r.id DESC LIMIT $3
)` + runSummaries + `
ORDER BY r.id DESC`
)

func (f *RunFilter) page(limit int, in []string) (sql string, values []any) {
	values = []any{f.States, pg.UnlessZero(f.Before), limit, f.Plan, f.Version, pg.UnlessZero(f.Since),
		pg.UnlessZero(f.Until), append([]string{}, f.Words...), f.Endpoint, f.Result, f.Schedule, in}
	switch {
	case f.Fold:
		return listFolded, []any{pg.UnlessZero(f.Before), limit, in}
	case f.Attention != nil:
		return listAttention, append(values, f.Attention.All, f.Attention.Runs, f.Attention.Endpoints)
	}
	switch f.Sort {
	case SortName:
		return listByName, values
	case SortItems:
		return listByItems, values
	case SortFailed:
		return listByFailed, values
	case SortTime:
		return listByTime, values
	case SortNewest, "":
	}
	return listRuns, values
}

// Runs lists runs.
func (s Store) Runs(ctx context.Context, f RunFilter) ([]RunSummary, error) {
	runs, _, err := s.RunsPage(ctx, f)
	return runs, err
}

// RunsPage is Runs, and reports whether further ones follow. The error wraps ErrNotFound if f.Before does not exist,
// and the order needs it.
func (s Store) RunsPage(ctx context.Context, f RunFilter) (runs []RunSummary, more bool, err error) {
	limit := pg.Limit(f.Limit, DefaultRuns, MaxRuns)
	sql, values := f.page(limit+1, workqueue.Namespaces(ctx))
	runs, err = pg.Collect(ctx, s.db.Pool, scanSummary, sql, values...)
	if err == nil && len(runs) == 0 && f.Sort != "" && f.Sort != SortNewest && f.Before != (workqueue.RunID{}) {
		_, err = ReadSummary(ctx, s.db.Pool, f.Before)
	}
	if err == nil {
		err = s.pace(ctx, runs)
	}
	if err == nil && f.Fold {
		err = s.past(ctx, runs)
	}
	if err != nil {
		return nil, false, fmt.Errorf("list runs: %w", err)
	}
	if slices.ContainsFunc(runs, func(r RunSummary) bool { return !r.Ended() }) {
		f, err := s.look(ctx, nil)
		for i := range runs {
			if r := &runs[i]; !r.Ended() {
				r.Forecast = f.of(r, err)
			}
		}
	}
	return runs[:min(len(runs), limit)], len(runs) > limit, nil
}

// What ended lately at the runs' endpoints, by work_slice_ended.
const answeredLately = `
SELECT r.id, extract(epoch FROM tranche_now() - r.started_at)::float8, coalesce(sum(w.items), 0)::bigint
FROM batchrun r
LEFT JOIN (
    SELECT w.run_id, w.ended_at, bit_count(w.mask) AS items
    FROM (SELECT DISTINCT endpoint FROM run_step WHERE run_id = ANY ($1)) e
    JOIN work_slice w ON w.endpoint = e.endpoint AND w.ended_at > tranche_now() - $2::interval
    WHERE w.state = 'recorded' AND w.run_id = ANY ($1)
) w ON w.run_id = r.id AND w.ended_at > r.started_at
WHERE r.id = ANY ($1) AND r.started_at < tranche_now()
GROUP BY r.id, r.started_at`

func (s Store) pace(ctx context.Context, runs []RunSummary) error {
	var ids []workqueue.RunID
	by := map[workqueue.RunID]*RunSummary{}
	for i := range runs {
		if r := &runs[i]; r.State == "running" {
			ids, by[r.ID] = append(ids, r.ID), r
		}
	}
	if len(ids) == 0 {
		return nil
	}
	var id workqueue.RunID
	var seconds float64
	var answered int64
	return pg.Each(pg.Rows(ctx, s.db.Pool, answeredLately, ids, rateWindow), []any{&id, &seconds, &answered}, func() {
		by[id].Rate = float64(answered) / ratedOver(seconds)
	})
}

// ratedOver is the seconds over which a rate is taken: the window, or the age of a younger generation.
func ratedOver(seconds float64) float64 { return max(min(seconds, rateWindow.Seconds()), 0.1) }

// hasWork: the step st has work now.
const hasWork = `(EXISTS (SELECT FROM work_slice w
        WHERE w.run_id = st.run_id AND w.step = st.step AND w.state IN ('scheduled', 'claimed', 'sent'))
    OR EXISTS (SELECT FROM work_block b WHERE b.run_id = st.run_id AND b.step = st.step AND b.has_ready))`

const runsThatAsk = `
SELECT st.run_id, st.endpoint FROM run_step st
WHERE st.run_id = ANY ($1) AND st.endpoint = ANY ($2) AND ` + hasWork

// batchrun_schedule
const pastRuns = `
SELECT s.name, r.id, ` + shownState + `, r.items, coalesce(r.failed, 0), r.accepted,
    coalesce(extract(epoch FROM r.finished_at - coalesce(r.started_at, r.created_at)), 0)::float8
FROM unnest($1::text[]) AS s (name) CROSS JOIN LATERAL (
    SELECT * FROM batchrun r WHERE r.schedule = s.name ORDER BY r.id DESC LIMIT 20) r
ORDER BY r.id`

// past reads the last runs of each run's schedule.
func (s Store) past(ctx context.Context, runs []RunSummary) error {
	var names []string
	by := map[string]*RunSummary{}
	for i := range runs {
		if name := runs[i].Schedule; name != "" {
			names, by[name] = append(names, name), &runs[i]
		}
	}
	if len(names) == 0 {
		return nil
	}
	var name string
	var p PastRun
	return pg.Each(pg.Rows(ctx, s.db.Pool, pastRuns, names),
		[]any{&name, &p.ID, &p.State, &p.Items, &p.Failed, &p.Accepted, &p.Seconds}, func() {
			by[name].Past = append(by[name].Past, p)
		})
}

// Asks returns, for each run, which of the endpoints it currently has work for.
func (s Store) Asks(
	ctx context.Context, runs []RunSummary, endpoints []string,
) (map[workqueue.RunID][]string, error) {
	if len(runs) == 0 || len(endpoints) == 0 {
		return nil, nil
	}
	ids := make([]workqueue.RunID, len(runs))
	for i := range runs {
		ids[i] = runs[i].ID
	}
	asks := map[workqueue.RunID][]string{}
	var run workqueue.RunID
	var endpoint string
	err := pg.Each(pg.Rows(ctx, s.db.Pool, runsThatAsk, ids, endpoints), []any{&run, &endpoint}, func() {
		asks[run] = append(asks[run], endpoint)
	})
	return asks, pg.Wrap(err, "read what runs ask")
}
