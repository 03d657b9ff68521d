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
	State      string     `json:"state" enum:"loading,running,completed,cancelled"`
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
	Steps          []StepView        `json:"steps"`
	Quarantined    int64             `json:"quarantined" doc:"messages about the run that could not be taken"`
	DeadLetters    int64             `json:"dead_letters" doc:"of the run, that wait for somebody"`
	GivenUp        int64             `json:"given_up" doc:"requests that were given up, and their items went on in others"`
	At             time.Time         `json:"at" doc:"the database's clock when it looked"`
}

// StepView is one step of a run: its settings, and where its items are. Items is the sum of Waiting, Ready, InFlight,
// Scheduled, Done and Failed.
type StepView struct {
	Step             Step    `json:"step"`
	Name             string  `json:"name"`
	Endpoint         string  `json:"endpoint"`
	State            string  `json:"state" enum:"running,completed"`
	Chunk            int     `json:"chunk" doc:"items in a slice at most"`
	MaxInFlight      int     `json:"max_in_flight" doc:"slices out at once at most"`
	MaxAttempts      int     `json:"max_attempts"`
	TimeoutSeconds   float64 `json:"timeout_seconds" doc:"until a slice without an answer is issued again"`
	BackoffSeconds   float64 `json:"backoff_seconds" doc:"before the first retry"`
	OpenBlocks       int     `json:"open_blocks"`
	Items            int64   `json:"items"`
	Waiting          int64   `json:"waiting" doc:"items that need another step first"`
	Ready            int64   `json:"ready"`
	InFlight         int64   `json:"in_flight" doc:"items asked for and not answered"`
	Scheduled        int64   `json:"scheduled" doc:"items that wait to be tried again"`
	Done             int64   `json:"done"`
	Failed           int64   `json:"failed"`
	SlicesInFlight   int64   `json:"slices_in_flight"`
	SlicesScheduled  int64   `json:"slices_scheduled"`
	SlicesEnded      int64   `json:"slices_ended"`
	AnsweredRecently int64   `json:"-"`
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
SELECT r.id, coalesce(r.name, ''), r.plan, r.state, r.generation, r.priority, r.items, r.skipped,
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
WHERE ($1::text[] IS NULL OR r.state = ANY ($1)) AND ($2::uuid IS NULL OR r.id < $2)
ORDER BY r.id DESC
LIMIT $3`

const oneRun = runSummaries + `WHERE r.id = $1`

// The messages are counted in quarantine_run, the letters in dead_letter_run.
const runExtras = `
SELECT coalesce(idempotency_key, ''), spec, params, sealed_at, clock_timestamp(),
    coalesce(extract(epoch FROM coalesce(finished_at, clock_timestamp()) - started_at), 0)::float8,
    (SELECT count(*) FROM quarantine q WHERE q.run_id = batchrun.id),
    (SELECT count(*) FROM dead_letter d WHERE d.run_id = batchrun.id AND d.state = 'waiting'),
    (SELECT count(*) FROM dead_letter d WHERE d.run_id = batchrun.id AND d.state = 'reissued')
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
    coalesce(w.answered, 0)
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
		err = tx.QueryRow(ctx, runExtras, id).Scan(&view.IdempotencyKey, &view.Spec, &view.Params, &view.SealedAt,
			&view.At, &view.Seconds, &view.Quarantined, &view.DeadLetters, &view.GivenUp)
		if err != nil {
			return err
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
	err := row.Scan(&r.ID, &r.Name, &r.Plan, &r.State, &r.Generation, &r.Priority, &r.Items, &r.Skipped, &r.Done,
		&r.Failed, &r.Source, &r.CreatedBy, &r.CreatedAt, &r.StartedAt, &r.FinishedAt)
	return r, err
}

func scanStepView(row pgx.CollectableRow) (StepView, error) {
	var v StepView
	err := row.Scan(&v.Step, &v.Name, &v.Endpoint, &v.State, &v.Chunk, &v.MaxInFlight, &v.MaxAttempts,
		&v.TimeoutSeconds, &v.BackoffSeconds, &v.OpenBlocks, &v.Items, &v.Ready, &v.Done, &v.Failed, &v.InFlight,
		&v.Scheduled, &v.SlicesInFlight, &v.SlicesScheduled, &v.SlicesEnded, &v.AnsweredRecently)
	v.Waiting = v.Items - v.Ready - v.Done - v.Failed - v.InFlight - v.Scheduled
	return v, err
}
