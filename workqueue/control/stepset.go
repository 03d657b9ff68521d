package control

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// StepChange is new settings of a step, as far as they are given. What nodes have sent already goes on as it was; the
// next claim, and the next end of a slice, go by the new ones.
type StepChange struct {
	workqueue.StepOverrides

	Endpoint string // where new requests go; empty: where they go now
}

func (c *StepChange) empty() bool { return c.Empty() && c.Endpoint == "" }

// Validate returns an error that names what cannot be.
func (c *StepChange) Validate() error {
	if name, problem := c.Check(); name != "" {
		return &workqueue.SettingError{Detail: name + ": " + problem}
	}
	return nil
}

// StepSettings is what of a step can be changed.
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

// lockSettings has the steps take their turn among claims, re-runs and cancels by its lock.
func lockSettings() string { return readSettings() + ` FOR NO KEY UPDATE` }

func writeSettings() string {
	return `
UPDATE run_step SET (endpoint, ` + plane.SettingColumns() + `) = ROW($3::text, ` + plane.SettingParameters(4) + `)
WHERE run_id = $1 AND step = $2`
}

const (
	// Where what is out was sent; what is not goes to the new endpoint.
	pinSlices = `
UPDATE work_slice SET endpoint = CASE WHEN state = 'scheduled' THEN $4 ELSE coalesce(endpoint, $3) END
WHERE run_id = $1 AND step = $2 AND state IN ('scheduled', 'claimed', 'sent')
  AND (state = 'scheduled' OR endpoint IS NULL)`

	// placeBlocks has ready items looked for where they are to go now. The blocks are locked in order before.
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
	Steps []string // those that it has
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

// StepNamed returns the step with the name, or the first when there is no name.
func StepNamed(steps []StepSettings, run workqueue.RunID, name string) (*StepSettings, error) {
	for i := range steps {
		if name == "" || steps[i].Name == name {
			return &steps[i], nil
		}
	}
	return nil, &UnknownStepError{run, name, StepNames(steps)}
}

// StepNames are the names of steps, in their order.
func StepNames(steps []StepSettings) (names []string) {
	for i := range steps {
		names = append(names, steps[i].Name)
	}
	return names
}

// checkCodes refuses a code that would be both tried again and not.
func (s *StepSettings) checkCodes() error {
	for _, code := range s.NeverRetry {
		if slices.Contains(s.RetryCodes, code) {
			return &workqueue.SettingError{Detail: fmt.Sprintf(
				"code %.80q would stand in retry_codes and in never_retry of step %s; take it out of one of them", code, s.Name)}
		}
	}
	return nil
}

// Change writes new settings of a locked step, and adds to before and after what differs.
func (s *StepSettings) Change(
	ctx context.Context, tx pgx.Tx, run workqueue.RunID, c *StepChange, d *ledger.Difference,
) error {
	if c.Endpoint != "" && s.kind != workqueue.KindEndpoint && s.kind != workqueue.KindRequest {
		return &workqueue.SettingError{Detail: fmt.Sprintf(
			"endpoint %s: step %s asks no endpoint, nodes do its work themselves (%s); leave "+
				"the endpoint out, or start a run of a plan with another step", c.Endpoint, s.Name, s.Endpoint)}
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

// move has the step's work found where it is to be done now, and by which limit.
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
	if _, err := tx.Exec(ctx, placeBlocks, run, s.Step, next.Endpoint, next.InFlightAuto); err != nil {
		return fmt.Errorf("move the ready items of run %s: %w", run, err)
	}
	return nil
}

// StepDifference adds to d what differs between two settings of a step.
func StepDifference(d *ledger.Difference, a, b *StepSettings) {
	d.Add("endpoint", a.Endpoint, b.Endpoint)
	after := maps.Collect(b.All())
	for name, before := range a.All() {
		d.Add(name, before, after[name])
	}
}
