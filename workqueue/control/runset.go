package control

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// RunChange is new settings of a run; nil leaves one unchanged.
type RunChange struct {
	Run       workqueue.RunID
	Step      string // step that Settings applies to; may be empty if there is only one
	Settings  StepChange
	Priority  *int
	MaxFailed *string    // see [workqueue.FailedLimit]
	DoneBy    *time.Time // its deadline; the zero time: none
	Gentle    *bool
	IfWas     map[string]string // expected current values, by setting, as text
	Reason    string
	Actor     string
}

// RunChanged is the differences.
type RunChanged struct {
	Step          string
	Before, After map[string]any // by setting; empty if nothing changed
	Hold          Hold           // of the run: a change does not end it
	HoldDetail    string
}

const (
	// setTurn goes with setPriority, before the run is locked.
	setTurn     = `UPDATE work_block SET turn = $2 WHERE run_id = $1 AND endpoint IS NOT NULL`
	setPriority = `UPDATE batchrun SET priority = $2 WHERE id = $1`
	priorityOf  = `SELECT priority FROM batchrun WHERE id = $1`

	timesOf = `
SELECT done_by, gentle, CASE WHEN state = 'running' THEN at_risk END, generation, tranche_now()
FROM batchrun WHERE id = $1`

	setTimes = `UPDATE batchrun SET done_by = $2, gentle = $3, at_risk = $4 WHERE id = $1`

	// What a schedule does with its late run follows the run's deadline.
	setOccurrence = `UPDATE schedule_occurrence SET done_by = $2 WHERE run_id = $1 AND late_at IS NULL AND $3`

	// ClearPace goes with a run whose time is taken away, once its steps are locked.
	ClearPace = `
UPDATE run_step SET in_flight_cap = NULL, share = 1
WHERE run_id = $1 AND (in_flight_cap IS NOT NULL OR share > 1)`

	// For an open run a percentage becomes a number at the seal, as in start's OpenRequest.open.
	setMaxFailed = `
UPDATE batchrun
SET max_failed = $2,
    failed_limit = CASE WHEN opened AND sealed_at IS NULL AND $2 LIKE '%\%' THEN NULL ELSE $3::bigint END
WHERE id = $1 RETURNING failed_limit`
)

// SetRun changes settings of a run, even an ended one. They apply from the next claim, or end of a request.
func (s Store) SetRun(ctx context.Context, c RunChange) (out RunChanged, err error) {
	if c.Settings.empty() && c.Priority == nil && c.MaxFailed == nil && c.DoneBy == nil && c.Gentle == nil {
		return out, workqueue.BadSetting("nothing to set: name a setting, like chunk or priority")
	}
	if err := c.Settings.Validate(); err != nil {
		return out, err
	}
	err = s.db.InTxWithin(ctx, database.OperatorTimeout, func(ctx context.Context, tx pgx.Tx) error {
		out, err = setRun(ctx, tx, &c)
		return err
	})
	switch {
	case errors.Is(err, workqueue.ErrNotFound): // it names the run
		return RunChanged{}, err
	case err != nil:
		return RunChanged{}, fmt.Errorf("set run %s: %w", c.Run, err)
	}
	return out, nil
}

// setRun locks the steps, then slices and blocks if needed, then the run, in the common order.
func setRun(ctx context.Context, tx pgx.Tx, c *RunChange) (out RunChanged, err error) {
	steps, err := LockSteps(ctx, tx, c.Run)
	if err != nil {
		return out, err
	}
	step, err := StepNamed(steps, c.Run, c.Step)
	if err != nil {
		return out, err
	}
	if c.Step == "" && len(steps) > 1 && !c.Settings.empty() {
		return out, workqueue.BadSetting("run %s has several steps; say which one to set: it has %s", c.Run,
			strings.Join(StepNames(steps), ", "))
	}
	d := &ledger.Difference{Before: map[string]any{}, After: map[string]any{}}
	if err := step.Change(ctx, tx, c.Run, &c.Settings, d); err != nil {
		return out, err
	}
	if err := c.setBlocks(ctx, tx); err != nil {
		return out, err
	}
	runs, err := LockHolds(ctx, tx, &Control{Run: c.Run}, "")
	if err != nil {
		return out, err
	}
	r := runs[0]
	if err := r.maySet(); err != nil {
		return out, err
	}
	if err := r.set(ctx, tx, c, d); err != nil {
		return out, err
	}
	if err := d.Expect("run "+c.Run.String(), c.IfWas); err != nil {
		return out, err
	}
	out = RunChanged{Step: step.Name, Before: d.Before, After: d.After, Hold: r.Hold, HoldDetail: r.Detail}
	if len(d.After) == 0 {
		return out, nil
	}
	return out, ledger.AuditChange(ctx, tx, ledger.Action{Actor: c.Actor, Name: "set", Run: c.Run, Before: d.Before,
		After:  d.After,
		Detail: map[string]any{"step": step.Name, "reason": pg.Plain(c.Reason)}})
}

// setBlocks changes what steps and blocks have of a change, before the run is locked.
func (c *RunChange) setBlocks(ctx context.Context, tx pgx.Tx) error {
	if c.DoneBy != nil && c.DoneBy.IsZero() || c.Gentle != nil && !*c.Gentle {
		if _, err := tx.Exec(ctx, ClearPace, c.Run); err != nil {
			return fmt.Errorf("clear the pace: %w", err)
		}
	}
	if c.Priority == nil {
		return nil
	}
	if _, err := tx.Exec(ctx, lockPlaced, c.Run); err != nil {
		return fmt.Errorf("lock the blocks of run %s: %w", c.Run, err)
	}
	_, err := tx.Exec(ctx, setTurn, c.Run, -*c.Priority)
	return pg.Wrap(err, "set the priority")
}

func (r *RunHold) maySet() error {
	switch r.state {
	case "loading":
		return &workqueue.StateError{Run: r.id, State: r.state, Op: "set", Fix: "wait until it has loaded"}
	case "cancelled":
		return &workqueue.StateError{Run: r.id, State: r.state, Op: "set", Fix: "start a new run"}
	}
	return nil
}

func (r *RunHold) set(ctx context.Context, tx pgx.Tx, c *RunChange, d *ledger.Difference) error {
	if c.Priority != nil {
		var before int
		if err := tx.QueryRow(ctx, priorityOf, r.id).Scan(&before); err != nil {
			return fmt.Errorf("read the priority: %w", err)
		}
		if _, err := tx.Exec(ctx, setPriority, r.id, *c.Priority); err != nil {
			return fmt.Errorf("set the priority: %w", err)
		}
		d.Add("priority", before, *c.Priority)
	}
	if err := r.setTimes(ctx, tx, c, d); err != nil {
		return err
	}
	if c.MaxFailed != nil {
		return r.changeThreshold(ctx, tx, *c.MaxFailed, d)
	}
	return nil
}

// setTimes changes the run's deadline. Its pace follows with the leader's next check.
func (r *RunHold) setTimes(ctx context.Context, tx pgx.Tx, c *RunChange, d *ledger.Difference) error {
	if c.DoneBy == nil && c.Gentle == nil {
		return nil
	}
	var by *time.Time
	var gentle bool
	var risk *AtRisk
	var gen workqueue.Generation
	var now time.Time
	if err := tx.QueryRow(ctx, timesOf, r.id).Scan(&by, &gentle, &risk, &gen, &now); err != nil {
		return fmt.Errorf("read its deadline: %w", err)
	}
	if err := workqueue.CheckDoneBy(c.DoneBy, now); err != nil {
		return err
	}
	next, gently := by, gentle
	if c.DoneBy != nil {
		next = pg.UnlessZero(*c.DoneBy)
		gently = gentle && next != nil
	}
	if c.Gentle != nil {
		gently = *c.Gentle
	}
	if gently && next == nil {
		return workqueue.BadSetting("gentle goes with done_by: only as many requests are in flight as done_by needs")
	}
	still := risk.against(next)
	if _, err := tx.Exec(ctx, setTimes, r.id, next, gently, still); err != nil {
		return fmt.Errorf("set its deadline: %w", err)
	}
	if risk != nil && still == nil {
		if err := addRisk(ctx, tx, r.id, gen, next, nil); err != nil {
			return err
		}
	}
	if _, err := tx.Exec(ctx, setOccurrence, r.id, next, c.DoneBy != nil); err != nil {
		return fmt.Errorf("set its deadline: %w", err)
	}
	d.Add("done_by", timeText(by), timeText(next))
	d.Add("gentle", gentle, gently)
	return nil
}

func timeText(t *time.Time) string {
	if t == nil {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

func (r *RunHold) changeThreshold(ctx context.Context, tx pgx.Tx, maxFailed string, d *ledger.Difference) error {
	limit, err := workqueue.FailedLimit(maxFailed, r.items)
	if err != nil {
		return err
	}
	d.Add("max_failed", r.maxFailed, maxFailed)
	r.maxFailed, r.limit = maxFailed, limit
	err = tx.QueryRow(ctx, setMaxFailed, r.id, r.maxFailed, r.limit).Scan(&r.limit)
	return pg.Wrap(err, "set the threshold")
}

func (r *RunHold) setThreshold(ctx context.Context, tx pgx.Tx, actor, maxFailed string) error {
	d := &ledger.Difference{}
	if err := r.changeThreshold(ctx, tx, maxFailed, d); err != nil {
		return err
	}
	if len(d.After) == 0 {
		return nil
	}
	return ledger.AuditChange(ctx, tx, ledger.Action{Actor: actor, Name: "set", Run: r.id, Before: d.Before,
		After: d.After})
}

// StepChange is new settings of a step. They apply from the next claim or end; sent requests do not change.
type StepChange struct {
	workqueue.StepOverrides

	Endpoint string // target of new requests; empty: unchanged
}

func (c *StepChange) empty() bool { return c.Empty() && c.Endpoint == "" }

// Validate returns an error that names the invalid setting.
func (c *StepChange) Validate() error {
	if name, problem := c.Check(); name != "" {
		return workqueue.BadSetting("%s: %s", name, problem)
	}
	return nil
}

// StepSettings is what can be changed of a step.
type StepSettings struct {
	Step     workqueue.Step
	Name     string
	kind     workqueue.Kind
	Endpoint string
	workqueue.StepSettings
}

func readSettings() string {
	return `
SELECT step, name, kind, endpoint, ` + plane.SettingsToRead("") + `
FROM run_step WHERE run_id = $1 ORDER BY step`
}

// lockSettings serializes with claims, reruns and cancels.
func lockSettings() string { return readSettings() + ` FOR NO KEY UPDATE` }

func writeSettings() string {
	return `
UPDATE run_step SET (endpoint, ` + plane.SettingColumns() + `) = ROW($3::text, ` + plane.SettingParameters(4) + `)
WHERE run_id = $1 AND step = $2`
}

const (
	// Records the endpoint of slices in flight; scheduled ones go to the new endpoint.
	pinSlices = `
UPDATE work_slice SET endpoint = CASE WHEN state = 'scheduled' THEN $4 ELSE coalesce(endpoint, $3) END
WHERE run_id = $1 AND step = $2 AND state IN ('scheduled', 'claimed', 'sent')
  AND (state = 'scheduled' OR endpoint IS NULL)`

	// placeBlocks sets where nodes find ready items. The blocks were locked in order before.
	placeBlocks = `
UPDATE work_block SET endpoint = $3, auto = $4 WHERE run_id = $1 AND step = $2 AND endpoint IS NOT NULL`
	lockPlaced = `
SELECT count(*) FROM (
    SELECT 1 FROM work_block WHERE run_id = $1 AND endpoint IS NOT NULL
    ORDER BY step, block FOR NO KEY UPDATE) locked`
)

// UnknownStepError names a step that a run does not have.
type UnknownStepError struct {
	Run   workqueue.RunID
	Name  string
	Steps []string // existing ones
}

func (e *UnknownStepError) Error() string {
	return fmt.Sprintf("run %s has no step %.80q; it has %s", e.Run, e.Name, strings.Join(e.Steps, ", "))
}

// Unwrap makes it an ErrNotFound.
func (e *UnknownStepError) Unwrap() error { return workqueue.ErrNotFound }

// LockSteps locks all steps of a run and returns them.
func LockSteps(ctx context.Context, tx pgx.Tx, run workqueue.RunID) ([]StepSettings, error) {
	return stepsOf(ctx, tx, lockSettings(), run)
}

// ReadSteps returns all steps of a run.
func ReadSteps(ctx context.Context, tx pgx.Tx, run workqueue.RunID) ([]StepSettings, error) {
	return stepsOf(ctx, tx, readSettings(), run)
}

func stepsOf(ctx context.Context, tx pgx.Tx, statement string, run workqueue.RunID) ([]StepSettings, error) {
	rows := pg.Rows(ctx, tx, statement, run)
	steps, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s StepSettings, err error) {
		return s, row.Scan(append([]any{&s.Step, &s.Name, &s.kind, &s.Endpoint}, plane.SettingTargets(&s.StepSettings)...)...)
	})
	if err != nil {
		return nil, fmt.Errorf("read the steps of run %s: %w", run, err)
	}
	if len(steps) == 0 {
		return nil, fmt.Errorf("run %s: %w", run, workqueue.ErrNotFound)
	}
	return steps, nil
}

// StepNamed returns the step with the name, or the first without a name.
func StepNamed(steps []StepSettings, run workqueue.RunID, name string) (*StepSettings, error) {
	for i := range steps {
		if name == "" || steps[i].Name == name {
			return &steps[i], nil
		}
	}
	return nil, &UnknownStepError{run, name, StepNames(steps)}
}

// StepNames returns the names of steps in order.
func StepNames(steps []StepSettings) (names []string) {
	for i := range steps {
		names = append(names, steps[i].Name)
	}
	return names
}

func (s *StepSettings) checkCodes() error {
	for _, code := range s.NoRetryCodes {
		if slices.Contains(s.RetryCodes, code) {
			return workqueue.BadSetting("code %.80q would be in retry_codes and in no_retry_codes of step %s; take it out "+
				"of one of them", code, s.Name)
		}
	}
	return nil
}

// Change writes new settings of a locked step, and adds the differences to d.
func (s *StepSettings) Change(
	ctx context.Context, tx pgx.Tx, run workqueue.RunID, c *StepChange, d *ledger.Difference,
) error {
	if c.Endpoint != "" && s.kind != workqueue.KindEndpoint && s.kind != workqueue.KindDirect {
		return workqueue.BadSetting("endpoint %s: step %s asks no endpoint, nodes do its work themselves (%s); leave the "+
			"endpoint out, or start a run of a plan with another step", c.Endpoint, s.Name, s.Endpoint)
	}
	next := *s
	next.StepSettings = s.Over(&c.StepOverrides)
	next.Endpoint = cmp.Or(c.Endpoint, s.Endpoint)
	var differs ledger.Difference
	StepDifference(&differs, s, &next)
	if differs.After == nil {
		return nil
	}
	if err := next.checkCodes(); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, writeSettings(),
		append([]any{run, s.Step, next.Endpoint}, plane.SettingValues(&next.StepSettings)...)...)
	if err != nil {
		return fmt.Errorf("set step %s of run %s: %w", s.Name, run, err)
	}
	if err := s.move(ctx, tx, run, &next); err != nil {
		return err
	}
	d.Join(&differs, s.Name, false)
	*s = next
	return nil
}

func (s *StepSettings) move(ctx context.Context, tx pgx.Tx, run workqueue.RunID, next *StepSettings) error {
	if next.Endpoint != s.Endpoint {
		if _, err := settle.LockSlices(ctx, tx, settle.SlicesOfRun, run); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, pinSlices, run, s.Step, s.Endpoint, next.Endpoint); err != nil {
			return fmt.Errorf("note where the slices of run %s were sent: %w", run, err)
		}
	}
	if next.Endpoint == s.Endpoint && next.InFlightAuto == s.InFlightAuto {
		return nil
	}
	if _, err := tx.Exec(ctx, lockPlaced, run); err != nil {
		return fmt.Errorf("lock the blocks of run %s: %w", run, err)
	}
	_, err := tx.Exec(ctx, placeBlocks, run, s.Step, next.Endpoint, next.InFlightAuto)
	return pg.Wrap(err, "move the ready items of run %s", run)
}

// StepDifference adds the differences between two settings of a step to d.
func StepDifference(d *ledger.Difference, a, b *StepSettings) {
	d.Add("endpoint", a.Endpoint, b.Endpoint)
	after := maps.Collect(b.All())
	for name, before := range a.All() {
		d.Add(name, before, after[name])
	}
}
