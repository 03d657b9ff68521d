package workqueue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// RunSummary is a run as a list shows it. While the run is not completed its counts come from the bit planes.
type RunSummary struct {
	ID         RunID      `json:"id"`
	Name       string     `json:"name,omitempty"`
	Plan       string     `json:"plan"`
	Version    int        `json:"plan_version,omitempty" doc:"of a plan on record; absent when the plan came with the run"`
	State      string     `json:"state" enum:"loading,running,paused,completed,cancelled"`
	Hold       *HoldView  `json:"hold,omitempty" doc:"why nothing is claimed of it"`
	Generation Generation `json:"generation" doc:"1 at the start, one more with every re-run"`
	Priority   int        `json:"priority"`
	Items      int64      `json:"items"`
	Skipped    int64      `json:"skipped" doc:"duplicates that intake left out"`
	Done       int64      `json:"done" doc:"items with a result"`
	Failed     int64      `json:"failed" doc:"items with an error that is final"`
	Source     string     `json:"source,omitempty"`
	CreatedBy  string     `json:"created_by,omitempty"`
	CreatedAt  time.Time  `json:"created_at"`
	StartedAt  *time.Time `json:"started_at,omitempty" doc:"of the current generation"`
	FinishedAt *time.Time `json:"finished_at,omitempty"`
}

// HoldView says why nothing is claimed of a run. What is under way is recorded all the same.
type HoldView struct {
	Kind   Hold      `json:"kind" enum:"operator,threshold,canary"`
	Detail string    `json:"detail,omitempty"`
	Since  time.Time `json:"since"`
	By     string    `json:"by,omitempty" doc:"who paused it; tranche when it paused itself"`
}

// Missing returns the number of items whose outcome is not final.
func (r *RunSummary) Missing() int64 { return r.Items - r.Done - r.Failed }

// Ended reports whether the run moves no more by itself.
func (r *RunSummary) Ended() bool { return r.State == "completed" || r.State == "cancelled" }

// RunView is everything there is to say about a run as a whole, as of one moment.
type RunView struct {
	RunSummary
	IdempotencyKey string            `json:"idempotency_key,omitempty"`
	Spec           json.RawMessage   `json:"spec" doc:"the plan as the run started with it"`
	Params         map[string]string `json:"params"`
	SealedAt       *time.Time        `json:"sealed_at,omitempty"`
	Seconds        float64           `json:"seconds" doc:"how long the current generation has run, or ran"`
	Rate           float64           `json:"rate" doc:"items answered a second, over the last ten seconds"`
	ETASeconds     *float64          `json:"eta_seconds,omitempty" doc:"time to the end at this rate"`
	MaxFailed      string            `json:"max_failed,omitempty" doc:"how many failed items pause it, like 500 or 1%"`
	FailedLimit    *int64            `json:"failed_limit,omitempty" doc:"the same in items, once all items are there"`
	Canary         *CanaryView       `json:"canary,omitempty" doc:"the items that run before all others"`
	Steps          []StepView        `json:"steps"`
	Quarantined    int64             `json:"quarantined" doc:"messages about the run that could not be taken"`
	DeadLetters    int64             `json:"dead_letters" doc:"of the run, that wait for somebody"`
	GivenUp        int64             `json:"given_up" doc:"requests that were given up, and their items went on in others"`
	At             time.Time         `json:"at" doc:"the database's clock when it looked"`
}

// CanaryView is the sample of a run that is tried before all other items.
type CanaryView struct {
	Items int    `json:"items"`
	Auto  bool   `json:"auto" doc:"goes on by itself when no more of the sample failed than may"`
	State string `json:"state,omitempty" enum:"sampling,waiting,passed" doc:"absent until all items are there"`
}

// StepSettings is what was set for a step, under the names that plans and flags have for it.
type StepSettings struct {
	Endpoint            string   `json:"endpoint"`
	Chunk               int      `json:"chunk" doc:"items in a request at most"`
	ChunkAuto           bool     `json:"chunk_auto,omitempty" doc:"nodes find the size up to chunk"`
	ChunkBytes          int      `json:"chunk_bytes,omitempty" doc:"wanted size of a request; absent: the node's"`
	ChunkTimeSeconds    float64  `json:"chunk_time_seconds,omitempty" doc:"for an automatic chunk"`
	InFlight            int      `json:"in_flight" doc:"requests out at once at most"`
	InFlightAuto        bool     `json:"in_flight_auto,omitempty" doc:"nodes find the limit up to in_flight"`
	Rate                float64  `json:"rate,omitempty" doc:"items a second at most; absent: no limit"`
	MaxAttempts         int      `json:"max_attempts"`
	RetryBackoffSeconds float64  `json:"retry_backoff_seconds" doc:"before the first retry; doubled each time"`
	MaxBackoffSeconds   float64  `json:"max_backoff_seconds,omitempty" doc:"the longest pause; absent: 5 minutes"`
	RetryCodes          []string `json:"retry_codes,omitempty" doc:"error codes that are tried again"`
	NeverRetry          []string `json:"never_retry,omitempty" doc:"and those that never are"`
	TimeoutSeconds      float64  `json:"timeout_seconds" doc:"what a service has for a request"`
}

// StepView is one step of a run: its settings, and where its items are. Items is the sum of Waiting, Ready, InFlight,
// Scheduled, Done and Failed.
type StepView struct {
	Step             Step         `json:"step"`
	Name             string       `json:"name"`
	Endpoint         string       `json:"endpoint"`
	State            string       `json:"state" enum:"running,completed"`
	Settings         StepSettings `json:"settings"`
	Chunk            int          `json:"chunk" doc:"settings.chunk, as it was called first"`
	MaxInFlight      int          `json:"max_in_flight" doc:"settings.in_flight, as it was called first"`
	MaxAttempts      int          `json:"max_attempts"`
	TimeoutSeconds   float64      `json:"timeout_seconds" doc:"until a slice without an answer is issued again"`
	BackoffSeconds   float64      `json:"backoff_seconds" doc:"before the first retry"`
	OpenBlocks       int          `json:"open_blocks"`
	Items            int64        `json:"items"`
	Waiting          int64        `json:"waiting" doc:"items that need another step first"`
	Ready            int64        `json:"ready"`
	InFlight         int64        `json:"in_flight" doc:"items asked for and not answered"`
	Scheduled        int64        `json:"scheduled" doc:"items that wait to be tried again"`
	Done             int64        `json:"done"`
	Failed           int64        `json:"failed"`
	SlicesInFlight   int64        `json:"slices_in_flight"`
	SlicesScheduled  int64        `json:"slices_scheduled"`
	SlicesEnded      int64        `json:"slices_ended"`
	AnsweredRecently int64        `json:"-"`
}

// RunFilter chooses what Runs lists.
type RunFilter struct {
	States []string // none: every state
	Before RunID    // only runs older than this one; zero: from the newest
	Limit  int      // 1 to MaxRuns; 0 means DefaultRuns
}

// The number of runs in one list.
const (
	DefaultRuns = 50
	MaxRuns     = 500
)

// rateWindow is how far back the rate looks.
const rateWindow = 10 * time.Second

// An item is done when every step is, and failed when one step is. Only runs that are not completed are counted from
// their planes; that read is a range of work_block's primary key for each of them.
const runSummaries = `
SELECT r.id, coalesce(r.name, ''), r.plan, coalesce(r.plan_version, 0), coalesce(r.hold, ''), r.hold_detail, r.held_at,
    r.held_by, CASE WHEN r.state = 'running' AND r.hold IS NOT NULL THEN 'paused' ELSE r.state END, r.generation,
    r.priority, r.items, r.skipped,
    coalesce(CASE WHEN r.state = 'completed' THEN r.done ELSE counts.done END, 0),
    coalesce(CASE WHEN r.state = 'completed' THEN r.failed ELSE counts.failed END, 0),
    r.source, r.created_by, r.created_at, r.started_at, r.finished_at
FROM batchrun r
LEFT JOIN LATERAL (
    SELECT sum(bit_count(planes.done))::bigint AS done, sum(bit_count(planes.failed))::bigint AS failed
    FROM (SELECT bit_and(b.done) AS done, bit_or(b.failed) AS failed
          FROM work_block b WHERE b.run_id = r.id GROUP BY b.block) planes
) counts ON r.state <> 'completed'
`

// The primary key, backwards.
const listRuns = runSummaries + `
WHERE ($1::text[] IS NULL
        OR CASE WHEN r.state = 'running' AND r.hold IS NOT NULL THEN 'paused' ELSE r.state END = ANY ($1))
     AND ($2::uuid IS NULL OR r.id < $2)
ORDER BY r.id DESC
LIMIT $3`

const oneRun = runSummaries + `WHERE r.id = $1`

// The messages are counted in quarantine_run, the letters in dead_letter_run.
const runExtras = `
SELECT coalesce(idempotency_key, ''), spec, params, sealed_at, clock_timestamp(),
    coalesce(extract(epoch FROM coalesce(finished_at, clock_timestamp()) - started_at), 0)::float8,
    (SELECT count(*) FROM quarantine q WHERE q.run_id = batchrun.id),
    (SELECT count(*) FROM dead_letter d WHERE d.run_id = batchrun.id AND d.state = 'waiting'),
    (SELECT count(*) FROM dead_letter d WHERE d.run_id = batchrun.id AND d.state = 'reissued'),
    max_failed, failed_limit, canary, canary_auto, coalesce(canary_state, '')
FROM batchrun WHERE id = $1`

// One range of work_block's primary key and one of work_slice_block for each step. remaining and mask are only taken
// out of the rows that are counted.
const stepViews = `
SELECT s.step, s.name, s.endpoint, CASE WHEN b.open_blocks > 0 THEN 'running' ELSE 'completed' END, s.chunk,
    s.in_flight, s.max_attempts, extract(epoch FROM s.slice_timeout)::float8,
    extract(epoch FROM s.retry_backoff)::float8, coalesce(b.open_blocks, 0),
    coalesce(b.items, 0), coalesce(b.ready, 0), coalesce(b.done, 0), coalesce(b.failed, 0),
    coalesce(w.in_flight, 0), coalesce(w.scheduled, 0),
    coalesce(w.slices_in_flight, 0), coalesce(w.slices_scheduled, 0), coalesce(w.slices_ended, 0),
    coalesce(w.answered, 0), s.in_flight_auto, s.chunk_auto, coalesce(s.chunk_bytes, 0),
    coalesce(extract(epoch FROM s.chunk_time), 0)::float8, coalesce(s.rate, 0),
    coalesce(extract(epoch FROM s.max_backoff), 0)::float8, s.retry_codes, s.never_retry
FROM run_step s
LEFT JOIN LATERAL (
    SELECT sum(size)::bigint AS items, sum(bit_count(ready))::bigint AS ready,
        sum(bit_count(done))::bigint AS done, sum(bit_count(failed))::bigint AS failed,
        count(*) FILTER (WHERE bit_count(done | failed) < size) AS open_blocks
    FROM work_block WHERE run_id = s.run_id AND step = s.step
) b ON true
LEFT JOIN LATERAL (
    SELECT sum(bit_count(remaining)) FILTER (WHERE state IN ('claimed', 'sent'))::bigint AS in_flight,
        sum(bit_count(remaining)) FILTER (WHERE state = 'scheduled')::bigint AS scheduled,
        count(*) FILTER (WHERE state IN ('claimed', 'sent')) AS slices_in_flight,
        count(*) FILTER (WHERE state = 'scheduled') AS slices_scheduled,
        count(*) FILTER (WHERE state NOT IN ('claimed', 'sent', 'scheduled')) AS slices_ended,
        sum(bit_count(mask)) FILTER (WHERE state = 'recorded' AND ended_at > greatest(
            clock_timestamp() - $2::interval, (SELECT started_at FROM batchrun WHERE id = $1)))::bigint AS answered
    FROM work_slice WHERE run_id = s.run_id AND step = s.step
) w ON true
WHERE s.run_id = $1
ORDER BY s.step`

// Runs lists runs, newest first.
func (s *Store) Runs(ctx context.Context, f RunFilter) ([]RunSummary, error) {
	if f.Limit <= 0 {
		f.Limit = DefaultRuns
	}
	var before *RunID
	if f.Before != (RunID{}) {
		before = &f.Before
	}
	rows, err := s.pool.Query(ctx, listRuns, f.States, before, min(f.Limit, MaxRuns))
	if err != nil {
		return nil, fmt.Errorf("list runs: %w", err)
	}
	runs, err := pgx.CollectRows(rows, scanSummary)
	if err != nil {
		return nil, fmt.Errorf("list runs: %w", err)
	}
	return runs, nil
}

// Run returns the state of one run. The error wraps ErrNotFound when there is no such run.
func (s *Store) Run(ctx context.Context, id RunID) (*RunView, error) {
	view := &RunView{}
	err := s.snapshot(ctx, func(tx pgx.Tx) (err error) {
		if view.RunSummary, err = readSummary(ctx, tx, id); err != nil {
			return err
		}
		var canary CanaryView
		err = tx.QueryRow(ctx, runExtras, id).Scan(&view.IdempotencyKey, &view.Spec, &view.Params, &view.SealedAt,
			&view.At, &view.Seconds, &view.Quarantined, &view.DeadLetters, &view.GivenUp, &view.MaxFailed,
			&view.FailedLimit, &canary.Items, &canary.Auto, &canary.State)
		if err != nil {
			return err
		}
		if canary.Items > 0 || canary.State != "" {
			view.Canary = &canary
		}
		rows, err := tx.Query(ctx, stepViews, id, rateWindow)
		if err != nil {
			return err
		}
		view.Steps, err = pgx.CollectRows(rows, scanStepView)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("view run %s: %w", id, err)
	}
	view.estimate()
	return view, nil
}

// estimate derives the rate and the time to go. A generation younger than the window is measured over its own age.
func (v *RunView) estimate() {
	if v.State != "running" || v.Seconds <= 0 {
		return
	}
	window := max(min(v.Seconds, rateWindow.Seconds()), 0.1)
	var answered, left int64
	for i := range v.Steps {
		answered += v.Steps[i].AnsweredRecently
		left += v.Steps[i].Items - v.Steps[i].Done - v.Steps[i].Failed
	}
	v.Rate = float64(answered) / window
	if v.Rate > 0 {
		eta := float64(left) / v.Rate
		v.ETASeconds = &eta
	}
}

func readSummary(ctx context.Context, tx pgx.Tx, id RunID) (RunSummary, error) {
	rows, err := tx.Query(ctx, oneRun, id)
	if err != nil {
		return RunSummary{}, err
	}
	run, err := pgx.CollectExactlyOneRow(rows, scanSummary)
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrNotFound
	}
	return run, err
}

func scanSummary(row pgx.CollectableRow) (RunSummary, error) {
	var r RunSummary
	var hold HoldView
	var since *time.Time
	err := row.Scan(&r.ID, &r.Name, &r.Plan, &r.Version, &hold.Kind, &hold.Detail, &since, &hold.By, &r.State,
		&r.Generation, &r.Priority, &r.Items, &r.Skipped, &r.Done,
		&r.Failed, &r.Source, &r.CreatedBy, &r.CreatedAt, &r.StartedAt, &r.FinishedAt)
	if since != nil && !r.Ended() {
		hold.Since = *since
		r.Hold = &hold
	}
	return r, err
}

func scanStepView(row pgx.CollectableRow) (StepView, error) {
	var v StepView
	set := &v.Settings
	err := row.Scan(&v.Step, &v.Name, &v.Endpoint, &v.State, &v.Chunk, &v.MaxInFlight, &v.MaxAttempts,
		&v.TimeoutSeconds, &v.BackoffSeconds, &v.OpenBlocks, &v.Items, &v.Ready, &v.Done, &v.Failed, &v.InFlight,
		&v.Scheduled, &v.SlicesInFlight, &v.SlicesScheduled, &v.SlicesEnded, &v.AnsweredRecently, &set.InFlightAuto,
		&set.ChunkAuto, &set.ChunkBytes, &set.ChunkTimeSeconds, &set.Rate, &set.MaxBackoffSeconds, &set.RetryCodes,
		&set.NeverRetry)
	set.Endpoint, set.Chunk, set.InFlight, set.MaxAttempts = v.Endpoint, v.Chunk, v.MaxInFlight, v.MaxAttempts
	set.TimeoutSeconds, set.RetryBackoffSeconds = v.TimeoutSeconds, v.BackoffSeconds
	v.Waiting = v.Items - v.Ready - v.Done - v.Failed - v.InFlight - v.Scheduled
	return v, err
}
