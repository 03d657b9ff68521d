package inspect

import (
	"context"
	"encoding/json"
	"fmt"
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

	Namespace string `json:"namespace" doc:"that owns it"`

	Plan string `json:"plan"`

	Version int `json:"plan_version,omitempty" doc:"of a saved plan; absent if the plan came with the run"`

	State      string               `json:"state" enum:"loading,running,paused,completed,cancelled"`
	Hold       *HoldView            `json:"hold,omitempty" doc:"why nothing is claimed of it"`
	Generation workqueue.Generation `json:"generation" doc:"1 at the start, one more with every rerun"`
	Priority   int                  `json:"priority"`
	Items      int64                `json:"items"`
	Skipped    int64                `json:"skipped" doc:"duplicates that intake left out"`
	Done       int64                `json:"done" doc:"items that all steps have finished without a failure"`
	Failed     int64                `json:"failed" doc:"items with an error that is final, in a step that is not optional"`
	Accepted   int64                `json:"accepted,omitempty" doc:"of the failed ones: their failures are accepted"`
	StepCount  int                  `json:"step_count"`
	Progress   float64              `json:"progress" doc:"0 to 1: outcomes of items in steps, of all expected"`
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
	Schedule   string     `json:"schedule,omitempty" doc:"the schedule that started it"`
	CreatedAt  time.Time  `json:"created_at"`
	StartedAt  *time.Time `json:"started_at,omitempty" doc:"of the current generation"`
	FinishedAt *time.Time `json:"finished_at,omitempty"`

	FromRun     *workqueue.RunID  `json:"from_run,omitempty" doc:"the earlier run that it continues"`
	ContinuedBy []workqueue.RunID `json:"continued_by,omitempty" doc:"by these runs, which took items of it"`

	Blocker *Blocker `json:"blocker,omitempty" doc:"why a running run makes no progress; only in lists"`

	settling int64 // failed items that other steps are still at

	Past []PastRun `json:"past,omitempty" doc:"the last 20 runs of its schedule, the newest last; in folded lists"`
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

// Settled returns the number of items with an outcome in every step.
func (r *RunSummary) Settled() int64 { return r.Done + r.Failed - r.settling }

// Ended reports whether the run no longer changes automatically.
func (r *RunSummary) Ended() bool { return r.State == "completed" || r.State == "cancelled" }

// RunView is a run in full, as of one moment.
type RunView struct {
	RunSummary
	IdempotencyKey string            `json:"idempotency_key,omitempty"`
	Spec           json.RawMessage   `json:"spec" doc:"the plan as the run started with it"`
	Params         map[string]string `json:"params"`
	ParamsError    error             `json:"-"` // why they cannot be decrypted
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
	GivenUp        int64             `json:"given_up" doc:"requests that were abandoned, and their items continued in others"`
	At             time.Time         `json:"at" doc:"the database's clock when it looked"`
}

// CanaryView is the sample of a run that is tried before all other items.
type CanaryView struct {
	Items int    `json:"items"`
	Auto  bool   `json:"auto" doc:"released automatically if the sample's failures are within the limit"`
	State string `json:"state,omitempty" enum:"sampling,waiting,passed" doc:"absent until all items are there"`
}

// shownState is the state of a run r.
const shownState = `CASE WHEN r.state = 'running' AND r.hold IS NOT NULL THEN 'paused' ELSE r.state END`

// Only uncompleted runs are counted from planes: a key range each. Items without a block count as missing.
const runSummaries = `
SELECT r.id, coalesce(r.name, ''), r.plan, coalesce(r.plan_version, 0), coalesce(r.hold, ''), r.hold_detail, r.held_at,
    r.held_by, ` + shownState + `, r.generation,
    r.priority, r.items, r.skipped,
    CASE WHEN r.state = 'completed' THEN r.done ELSE counts.done END,
    CASE WHEN r.state = 'completed' THEN r.failed ELSE counts.failed END,
    CASE WHEN r.state = 'completed' THEN r.accepted ELSE counts.accepted END,
    r.source, r.created_by, r.created_at, r.started_at, r.finished_at, steps.n,
    CASE WHEN r.state = 'completed' THEN 1
        ELSE coalesce(counts.parts / nullif(greatest(counts.all_parts, r.items * steps.n), 0), 0) END::float8,
    r.opened AND r.sealed_at IS NULL AND r.state IN ('loading', 'running'), r.seal_deadline, r.overdue_at IS NOT NULL,
    r.on_overdue, coalesce(r.canary_state, '') = 'sampling',
    CASE WHEN r.state = 'running' THEN ARRAY(SELECT st.name FROM run_step st
        WHERE st.run_id = r.id AND st.gate_since IS NOT NULL ORDER BY st.step) END,
    r.from_run, ARRAY(SELECT o.id FROM batchrun o WHERE o.from_run = r.id AND o.namespace = r.namespace ORDER BY o.id),
    r.done_by, r.gentle, CASE WHEN r.state = 'running' THEN r.at_risk END, coalesce(r.schedule, ''),
    r.namespace, counts.done + counts.failed - counts.settled
FROM chosen r
CROSS JOIN LATERAL (SELECT count(*) AS n FROM run_step st WHERE st.run_id = r.id) steps
CROSS JOIN LATERAL (` + plane.OutcomeOfRun + ` WHERE r.state <> 'completed') counts
`

const oneRun = `WITH chosen AS (SELECT * FROM batchrun WHERE id = $1)` + runSummaries

// quarantine_run counts the messages, dead_letter_run the letters.
const runExtras = `
SELECT coalesce(idempotency_key, ''), spec, params, sealed_at, tranche_now(),
    coalesce(extract(epoch FROM coalesce(finished_at, tranche_now()) - started_at), 0)::float8,
    (SELECT count(*) FROM quarantine q WHERE q.run_id = batchrun.id),
    (SELECT count(*) FROM dead_letter d WHERE d.run_id = batchrun.id AND d.state = 'waiting'),
    (SELECT count(*) FROM dead_letter d WHERE d.run_id = batchrun.id AND d.state = 'reissued'),
    max_failed, fail_fast, failed_limit, canary, canary_auto_approve, coalesce(canary_state, '')
FROM batchrun WHERE id = $1`

// ForecastRun is Run with the forecast, unless the run ended.
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
		view.Settling = view.RunSummary.settling
		var canary CanaryView
		var params []byte
		err = tx.QueryRow(ctx, runExtras, id).Scan(&view.IdempotencyKey, &view.Spec, &params, &view.SealedAt,
			&view.At, &view.Seconds, &view.Quarantined, &view.DeadLetters, &view.GivenUp, &view.MaxFailed,
			&view.FailFast, &view.FailedLimit, &canary.Items, &canary.Auto, &canary.State)
		if err != nil {
			return err
		}
		if view.Params, view.ParamsError = s.db.Params(ctx, tx, id, params); view.ParamsError != nil {
			view.Params = map[string]string{}
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
	return run, pg.NoRow(err, workqueue.ErrNotFound)
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
		&r.ContinuedBy, &r.DoneBy, &r.Gentle, &r.AtRisk, &r.Schedule, &r.Namespace, &r.settling)
	if isOpen {
		r.Open = &open
	}
	if since != nil && !r.Ended() {
		hold.Since = *since
		r.Hold = &hold
	}
	return r, err
}
