package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/forecast"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/start"
)

// RunSummary is a run in a list. Until the run is completed, its counts come from the bit planes.
type RunSummary struct {
	ID   workqueue.RunID `json:"id"`
	Name string          `json:"name,omitempty"`
	Plan string          `json:"plan"`

	Version int `json:"plan_version,omitempty" doc:"of a saved plan; absent if the plan came with the run"`

	State      string               `json:"state" enum:"loading,running,paused,completed,cancelled"`
	Hold       *HoldView            `json:"hold,omitempty" doc:"why nothing is claimed of it"`
	Generation workqueue.Generation `json:"generation" doc:"1 at the start, one more with every re-run"`
	Priority   int                  `json:"priority"`
	Items      int64                `json:"items"`
	Skipped    int64                `json:"skipped" doc:"duplicates that intake left out"`
	Done       int64                `json:"done" doc:"items that every step has come to its end with, and none has failed"`
	Failed     int64                `json:"failed" doc:"items with an error that is final, in a step that is not optional"`
	Accepted   int64                `json:"accepted,omitempty" doc:"of the failed ones: their failures are accepted"`
	StepCount  int                  `json:"step_count"`
	Progress   float64              `json:"progress" doc:"0 to 1: outcomes of items in steps, of all that there are to be"`
	Rate       float64              `json:"rate" doc:"items answered a second at all steps, over the last ten seconds"`

	Forecast *forecast.Forecast `json:"forecast,omitempty" doc:"when it will end; absent when it has"`

	DoneBy *time.Time      `json:"done_by,omitempty" doc:"its deadline, which its pace follows"`
	Gentle bool            `json:"gentle,omitempty" doc:"only as many requests in flight as done_by needs"`
	AtRisk *control.AtRisk `json:"at_risk,omitempty" doc:"why it will not have ended by then; absent: it will, or unknown"`

	Sampling   bool       `json:"sampling,omitempty" doc:"its canary is in progress"`
	Approval   []string   `json:"approval,omitempty" doc:"steps that wait for approval"`
	Open       *OpenView  `json:"open,omitempty" doc:"while it takes items, before it is sealed"`
	Source     string     `json:"source,omitempty"`
	CreatedBy  string     `json:"created_by,omitempty"`
	CreatedAt  time.Time  `json:"created_at"`
	StartedAt  *time.Time `json:"started_at,omitempty" doc:"of the current generation"`
	FinishedAt *time.Time `json:"finished_at,omitempty"`

	FromRun   *workqueue.RunID  `json:"from_run,omitempty" doc:"the earlier run that it carries on"`
	CarriedOn []workqueue.RunID `json:"carried_on,omitempty" doc:"by these runs, which took items of it"`

	Blocker *Blocker `json:"blocker,omitempty" doc:"why it does not go on although it is running; in lists"`
}

// Blocker is why a run is stalled until an operator acts.
type Blocker struct {
	Kind  string    `json:"kind" doc:"as in GET /health, like no_listeners"`
	Text  string    `json:"text"`
	Since time.Time `json:"since"`
}

// HoldView says why a run's items are not claimed. Requests in flight are recorded anyway.
type HoldView struct {
	Kind   control.Hold `json:"kind" enum:"operator,threshold,fail_fast,canary"`
	Detail string       `json:"detail,omitempty"`
	Since  time.Time    `json:"since"`
	By     string       `json:"by,omitempty" doc:"who paused it; tranche when it paused itself"`
}

// OpenView is a run that takes items until it is sealed.
type OpenView struct {
	SealDeadline *time.Time `json:"seal_deadline,omitempty" doc:"when it should have been sealed"`
	Overdue      bool       `json:"overdue,omitempty" doc:"that time passed, and it was reported"`
	OnOverdue    string     `json:"on_overdue" doc:"what happens then: report, seal or cancel"`
}

// Missing returns the number of items without a final outcome.
func (r *RunSummary) Missing() int64 { return r.Items - r.Done - r.Failed }

// Ended reports whether the run no longer changes automatically.
func (r *RunSummary) Ended() bool { return r.State == "completed" || r.State == "cancelled" }

// RunView is a run in full, as of one moment.
type RunView struct {
	RunSummary
	IdempotencyKey string            `json:"idempotency_key,omitempty"`
	Spec           json.RawMessage   `json:"spec" doc:"the plan as the run started with it"`
	Params         map[string]string `json:"params"`
	SealedAt       *time.Time        `json:"sealed_at,omitempty"`
	Seconds        float64           `json:"seconds" doc:"how long the current generation has run, or ran"`
	MaxFailed      string            `json:"max_failed,omitempty" doc:"how many failed items pause it, like 500 or 1%"`
	FailFast       string            `json:"fail_fast" doc:"first failures of a step that pause it, like 200/400; or off"`
	FailedLimit    *int64            `json:"failed_limit,omitempty" doc:"the same in items, once all items are there"`
	Canary         *CanaryView       `json:"canary,omitempty" doc:"the items that run before all others"`
	Order          *OrderView        `json:"order,omitempty" doc:"items of the same value go one at a time"`
	Settling       int64             `json:"settling,omitempty" doc:"failed items that other steps are still at"`
	Steps          []StepView        `json:"steps"`
	Quarantined    int64             `json:"quarantined" doc:"messages about the run that could not be taken"`
	DeadLetters    int64             `json:"dead_letters" doc:"of the run, waiting for an operator"`
	GivenUp        int64             `json:"given_up" doc:"requests that were given up, and their items went on in others"`
	At             time.Time         `json:"at" doc:"the database's clock when it looked"`
}

// CanaryView is the sample of a run that is tried before all other items.
type CanaryView struct {
	Items int    `json:"items"`
	Auto  bool   `json:"auto" doc:"released automatically when no more of the sample failed than allowed"`
	State string `json:"state,omitempty" enum:"sampling,waiting,passed" doc:"absent until all items are there"`
}

// RunFilter selects runs.
type RunFilter struct {
	States   []string        // none: every state
	Words    []string        // each in the name, plan, source or starter, in any case, or the start of the ID
	Result   string          // failed: only completed runs with failures not accepted; ok: without; empty: all
	Plan     string          // only runs of this plan
	Version  int             // of the plan; 0: any
	Endpoint string          // only runs with a step that calls this
	Since    time.Time       // only runs created at this time or later; zero: all
	Until    time.Time       // only runs created before; zero: all
	Before   workqueue.RunID // only runs older than this one; zero: from the newest
	Limit    int             // 1 to MaxRuns; 0 means DefaultRuns
}

// The number of runs in one list.
const (
	DefaultRuns = 50
	MaxRuns     = 500
)

// rateWindow is the period over which the rate is measured.
const rateWindow = 10 * time.Second

// Only uncompleted runs are counted from planes: a key range each. Items without a block count as missing.
const runSummaries = `
SELECT r.id, coalesce(r.name, ''), r.plan, coalesce(r.plan_version, 0), coalesce(r.hold, ''), r.hold_detail, r.held_at,
    r.held_by, CASE WHEN r.state = 'running' AND r.hold IS NOT NULL THEN 'paused' ELSE r.state END, r.generation,
    r.priority, r.items, r.skipped,
    coalesce(CASE WHEN r.state = 'completed' THEN r.done ELSE counts.done END, 0),
    coalesce(CASE WHEN r.state = 'completed' THEN r.failed ELSE counts.failed END, 0),
    coalesce(CASE WHEN r.state = 'completed' THEN r.accepted ELSE counts.accepted END, 0),
    r.source, r.created_by, r.created_at, r.started_at, r.finished_at, steps.n,
    CASE WHEN r.state = 'completed' THEN 1
        ELSE coalesce(counts.parts / nullif(greatest(counts.all_parts, r.items * steps.n), 0), 0) END::float8,
    r.opened AND r.sealed_at IS NULL AND r.state IN ('loading', 'running'), r.seal_deadline, r.overdue_at IS NOT NULL,
    r.on_overdue, coalesce(r.canary_state, '') = 'sampling',
    CASE WHEN r.state = 'running' THEN ARRAY(SELECT st.name FROM run_step st
        WHERE st.run_id = r.id AND st.gate_since IS NOT NULL ORDER BY st.step) END,
    r.from_run, ARRAY(SELECT o.id FROM batchrun o WHERE o.from_run = r.id ORDER BY o.id), r.done_by, r.gentle,
    CASE WHEN r.state = 'running' THEN r.at_risk END
FROM chosen r
CROSS JOIN LATERAL (SELECT count(*) AS n FROM run_step st WHERE st.run_id = r.id) steps
LEFT JOIN LATERAL (
    SELECT sum(bit_count(o.settled & ~o.failed))::bigint AS done, sum(bit_count(o.failed))::bigint AS failed,
        sum(bit_count(o.accepted))::bigint AS accepted, sum(o.parts) AS parts, sum(o.all_parts) AS all_parts
    FROM (` + plane.OutcomePlanes + `) o
) counts ON r.state <> 'completed'
`

// The primary key, backwards; each run left out costs a row. The locale decides case beyond ASCII.
const listRuns = `
WITH chosen AS MATERIALIZED (
    SELECT * FROM batchrun r
    WHERE ($1::text[] IS NULL
            OR CASE WHEN r.state = 'running' AND r.hold IS NOT NULL THEN 'paused' ELSE r.state END = ANY ($1))
        AND ($2::uuid IS NULL OR r.id < $2)
        AND ($4 = '' OR r.plan = $4) AND ($5 = 0 OR r.plan_version = $5)
        AND ($6::timestamptz IS NULL OR r.created_at >= $6) AND ($7::timestamptz IS NULL OR r.created_at < $7)
        AND NOT EXISTS (SELECT 1 FROM unnest($8::text[]) AS w (word)
            WHERE position(w.word IN concat_ws(E'\n', r.name, r.plan, r.source, r.created_by)) = 0
                AND position(lower(w.word) IN lower(concat_ws(E'\n', r.name, r.plan, r.source, r.created_by))) = 0
                AND NOT starts_with(r.id::text, lower(w.word))
                AND (length(w.word) < 4 OR position(lower(w.word) IN r.id::text) = 0))
        AND ($9 = '' OR EXISTS (SELECT 1 FROM run_step st WHERE st.run_id = r.id AND st.endpoint = $9))
        AND ($10 = '' OR r.state = 'completed' AND (r.failed > r.accepted) = ($10 = 'failed'))
    ORDER BY r.id DESC
    LIMIT $3
)` + runSummaries + `
ORDER BY r.id DESC`

const oneRun = `WITH chosen AS (SELECT * FROM batchrun WHERE id = $1)` + runSummaries

// quarantine_run counts the messages, dead_letter_run the letters.
const runExtras = `
SELECT coalesce(idempotency_key, ''), spec, params, sealed_at, tranche_now(),
    coalesce(extract(epoch FROM coalesce(finished_at, tranche_now()) - started_at), 0)::float8,
    (SELECT count(*) FROM quarantine q WHERE q.run_id = batchrun.id),
    (SELECT count(*) FROM dead_letter d WHERE d.run_id = batchrun.id AND d.state = 'waiting'),
    (SELECT count(*) FROM dead_letter d WHERE d.run_id = batchrun.id AND d.state = 'reissued'),
    max_failed, fail_fast, failed_limit, canary, canary_auto_approve, coalesce(canary_state, ''),
    CASE WHEN state = 'completed' THEN 0 ELSE coalesce((SELECT sum(bit_count(o.failed & ~o.settled))
        FROM (SELECT * FROM batchrun WHERE id = $1) r CROSS JOIN LATERAL (` + plane.OutcomePlanes +
	`) o), 0) END::bigint
FROM batchrun WHERE id = $1`

// Runs lists runs, newest first.
func (s Store) Runs(ctx context.Context, f RunFilter) ([]RunSummary, error) {
	runs, _, err := s.RunsPage(ctx, f)
	return runs, err
}

// RunsPage is Runs, and reports whether older ones follow.
func (s Store) RunsPage(ctx context.Context, f RunFilter) (runs []RunSummary, more bool, err error) {
	limit := pg.Limit(f.Limit, DefaultRuns, MaxRuns)
	runs, err = pg.Collect(ctx, s.db.Pool, scanSummary,
		listRuns, f.States, unlessZero(f.Before), limit+1, f.Plan, f.Version, unlessZero(f.Since), unlessZero(f.Until),
		append([]string{}, f.Words...), f.Endpoint, f.Result)
	if err == nil {
		err = s.pace(ctx, runs)
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
	err := pg.Each(pg.Rows(ctx, s.db.Pool, answeredLately, ids, rateWindow), []any{&id, &seconds, &answered}, func() {
		by[id].Rate = float64(answered) / ratedOver(seconds)
	})
	return err
}

// ratedOver is the seconds over which a rate is taken: the window, or the age of a younger generation.
func ratedOver(seconds float64) float64 { return max(min(seconds, rateWindow.Seconds()), 0.1) }

const runsThatAsk = `
SELECT st.run_id, st.endpoint FROM run_step st
WHERE st.run_id = ANY ($1) AND st.endpoint = ANY ($2) AND (
    EXISTS (SELECT FROM work_slice w
        WHERE w.run_id = st.run_id AND w.step = st.step AND w.state IN ('scheduled', 'claimed', 'sent'))
    OR EXISTS (SELECT FROM work_block b WHERE b.run_id = st.run_id AND b.step = st.step AND b.has_ready))`

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
	if err != nil {
		return nil, fmt.Errorf("read what runs ask: %w", err)
	}
	return asks, nil
}

func unlessZero[T comparable](value T) *T {
	var zero T
	if value == zero {
		return nil
	}
	return &value
}

// ForecastRun is Run with the forecast, unless the run has ended.
func (s Store) ForecastRun(ctx context.Context, id workqueue.RunID) (*RunView, error) {
	view, err := s.Run(ctx, id)
	if err == nil && !view.Ended() {
		f, err := s.look(ctx, &view.RunSummary)
		view.Forecast = f.of(&view.RunSummary, err)
	}
	return view, err
}

// Run returns one run, without its forecast. The error wraps ErrNotFound if it does not exist.
func (s Store) Run(ctx context.Context, id workqueue.RunID) (*RunView, error) {
	view := &RunView{}
	err := s.db.Snapshot(ctx, func(tx pgx.Tx) (err error) {
		if view.RunSummary, err = ReadSummary(ctx, tx, id); err != nil {
			return err
		}
		var canary CanaryView
		err = tx.QueryRow(ctx, runExtras, id).Scan(&view.IdempotencyKey, &view.Spec, &view.Params, &view.SealedAt,
			&view.At, &view.Seconds, &view.Quarantined, &view.DeadLetters, &view.GivenUp, &view.MaxFailed,
			&view.FailFast, &view.FailedLimit, &canary.Items, &canary.Auto, &canary.State, &view.Settling)
		if err != nil {
			return err
		}
		if canary.Items > 0 || canary.State != "" {
			view.Canary = &canary
		}
		order, err := start.OrderOf(ctx, tx, id)
		if err != nil {
			return err
		}
		view.Order = orderView(order)
		if view.Steps, err = pg.Collect(ctx, tx, scanStepView, stepViews(), id, rateWindow); err != nil {
			return err
		}
		gates, err := control.Gates(ctx, tx, id)
		for i := range gates {
			view.Steps[gates[i].Step].Gate = &gates[i]
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("view run %s: %w", id, err)
	}
	view.estimate()
	return view, nil
}

func (v *RunView) estimate() {
	if v.State != "running" || v.Seconds <= 0 {
		return
	}
	var answered int64
	for i := range v.Steps {
		st := &v.Steps[i]
		answered += st.AnsweredRecently
		st.Rate = float64(st.AnsweredRecently) / ratedOver(v.Seconds)
	}
	v.Rate = float64(answered) / ratedOver(v.Seconds)
}

// ReadSummary reads a run.
func ReadSummary(ctx context.Context, tx pg.Querier, id workqueue.RunID) (RunSummary, error) {
	run, err := pg.One(ctx, tx, scanSummary, oneRun, id)
	if errors.Is(err, pgx.ErrNoRows) {
		err = workqueue.ErrNotFound
	}
	return run, err
}

func scanSummary(row pgx.CollectableRow) (RunSummary, error) {
	var r RunSummary
	var hold HoldView
	var open OpenView
	var isOpen bool
	var since *time.Time
	err := row.Scan(&r.ID, &r.Name, &r.Plan, &r.Version, &hold.Kind, &hold.Detail, &since, &hold.By, &r.State,
		&r.Generation, &r.Priority, &r.Items, &r.Skipped, &r.Done,
		&r.Failed, &r.Accepted, &r.Source, &r.CreatedBy, &r.CreatedAt, &r.StartedAt,
		&r.FinishedAt, &r.StepCount, &r.Progress, &isOpen,
		&open.SealDeadline, &open.Overdue, &open.OnOverdue, &r.Sampling, &r.Approval, &r.FromRun,
		&r.CarriedOn, &r.DoneBy, &r.Gentle, &r.AtRisk)
	if isOpen {
		r.Open = &open
	}
	if since != nil && !r.Ended() {
		hold.Since = *since
		r.Hold = &hold
	}
	return r, err
}
