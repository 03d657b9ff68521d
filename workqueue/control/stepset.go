package control

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// Bounds of a step's settings.
const (
	maxInFlight  = 10_000
	maxAttempts  = 100
	maxStepPause = 365 * 24 * time.Hour
	maxStepRate  = 1e9
)

// StepChange is new settings of a step, as far as they are not nil. What nodes have sent already goes on as it was; the
// next claim, and the next end of a slice, go by the new ones.
type StepChange struct {
	Chunk        *int           // items of a slice; ends the search for it
	ChunkAuto    bool           // nodes find the chunk, up to Chunk or AutoChunk
	ChunkBytes   *int           // wanted size of a request; 0: the node's
	ChunkTime    *time.Duration // what a chunk should take, of an automatic one; 0: the nodes' own idea
	InFlight     *int           // slices at once; ends the search for it
	InFlightAuto bool           // nodes find the limit, up to InFlight or AutoInFlight
	Rate         *float64       // items a second; 0: no limit
	MaxAttempts  *int
	RetryBackoff *time.Duration
	MaxBackoff   *time.Duration // 0: 5 minutes
	Timeout      *time.Duration
	RetryCodes   *[]string // error codes that are tried again whatever the service says
	NeverRetry   *[]string // and those that never are
	Endpoint     string    // where new requests go; empty: where they go now
}

func (c *StepChange) empty() bool { return *c == StepChange{} }

// Validate returns an error that names what cannot be.
func (c *StepChange) Validate() error {
	spans := []struct {
		name  string
		value *time.Duration
		least time.Duration
	}{
		{"chunk time", c.ChunkTime, 0}, {"backoff", c.RetryBackoff, 0}, {"longest backoff", c.MaxBackoff, 0},
		{"slice timeout", c.Timeout, time.Millisecond},
	}
	for _, s := range spans {
		if s.value != nil && (*s.value < s.least || *s.value > maxStepPause) {
			return &workqueue.SettingError{Detail: fmt.Sprintf("%s is %s; give %s to %s", s.name, *s.value, s.least,
				maxStepPause)}
		}
	}
	numbers := []struct {
		name  string
		value *int
		least int
		most  int
	}{
		{"chunk", c.Chunk, 1, bitfield.Size}, {"in flight", c.InFlight, 1, maxInFlight},
		{"attempts", c.MaxAttempts, 1, maxAttempts}, {"chunk bytes", c.ChunkBytes, 0, 1 << 30},
	}
	for _, n := range numbers {
		if n.value != nil && (*n.value < n.least || *n.value > n.most) {
			return &workqueue.SettingError{Detail: fmt.Sprintf("%s is %d; give %d to %d", n.name, *n.value, n.least, n.most)}
		}
	}
	if c.Rate != nil && !(*c.Rate >= 0 && *c.Rate <= maxStepRate) {
		return &workqueue.SettingError{Detail: fmt.Sprintf("rate is %g; give items a second, or 0 for no limit", *c.Rate)}
	}
	return nil
}

// StepSettings is what of a step can be changed.
type StepSettings struct {
	Step         workqueue.Step
	Name         string
	kind         workqueue.Kind
	Endpoint     string
	Chunk        int
	ChunkAuto    bool
	ChunkBytes   int
	ChunkTime    time.Duration
	InFlight     int
	InFlightAuto bool
	Rate         float64
	MaxAttempts  int
	RetryBackoff time.Duration
	MaxBackoff   time.Duration
	Timeout      time.Duration
	RetryCodes   string // with commas
	NeverRetry   string // likewise
}

const (
	// The steps take their turn among claims, re-runs and cancels by this lock.
	lockSettings = `
SELECT step, name, kind, endpoint, chunk, chunk_auto, coalesce(chunk_bytes, 0), coalesce(chunk_time, interval '0'),
       in_flight, in_flight_auto, coalesce(rate, 0), max_attempts, retry_backoff, coalesce(max_backoff, interval '0'),
       slice_timeout, array_to_string(retry_codes, ', '), array_to_string(never_retry, ', ')
FROM run_step WHERE run_id = $1 ORDER BY step FOR NO KEY UPDATE`

	writeSettings = `
UPDATE run_step
SET endpoint = $3, chunk = $4, chunk_auto = $5, chunk_bytes = nullif($6, 0), chunk_time = nullif($7, interval '0'),
    in_flight = $8, in_flight_auto = $9, rate = nullif($10, 0::float8), max_attempts = $11, retry_backoff = $12,
    max_backoff = nullif($13, interval '0'), slice_timeout = $14, retry_codes = $15, never_retry = $16
WHERE run_id = $1 AND step = $2`

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
	rows, err := tx.Query(ctx, lockSettings, run)
	if err != nil {
		return nil, fmt.Errorf("lock the steps of run %s: %w", run, err)
	}
	steps, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s StepSettings, err error) {
		return s, row.Scan(&s.Step, &s.Name, &s.kind, &s.Endpoint, &s.Chunk, &s.ChunkAuto, &s.ChunkBytes, &s.ChunkTime,
			&s.InFlight, &s.InFlightAuto, &s.Rate, &s.MaxAttempts, &s.RetryBackoff, &s.MaxBackoff, &s.Timeout, &s.RetryCodes,
			&s.NeverRetry)
	})
	if err != nil {
		return nil, fmt.Errorf("lock the steps of run %s: %w", run, err)
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

// with returns the settings after a change.
func (s StepSettings) with(c *StepChange) StepSettings {
	if c.ChunkAuto {
		s.Chunk, s.ChunkAuto = workqueue.AutoChunk, true
	} else if c.Chunk != nil {
		s.ChunkAuto, s.ChunkTime = false, 0
	}
	if c.InFlightAuto {
		s.InFlight, s.InFlightAuto = workqueue.AutoInFlight, true
	} else if c.InFlight != nil {
		s.InFlightAuto = false
	}
	put(&s.Chunk, c.Chunk)
	put(&s.ChunkBytes, c.ChunkBytes)
	put(&s.ChunkTime, c.ChunkTime)
	put(&s.InFlight, c.InFlight)
	put(&s.Rate, c.Rate)
	put(&s.MaxAttempts, c.MaxAttempts)
	put(&s.RetryBackoff, c.RetryBackoff)
	if s.MaxBackoff > 0 {
		s.MaxBackoff = max(s.MaxBackoff, s.RetryBackoff)
	}
	put(&s.MaxBackoff, c.MaxBackoff)
	put(&s.Timeout, c.Timeout)
	if c.RetryCodes != nil {
		s.RetryCodes = strings.Join(*c.RetryCodes, workqueue.CodeComma)
	}
	if c.NeverRetry != nil {
		s.NeverRetry = strings.Join(*c.NeverRetry, workqueue.CodeComma)
	}
	if c.Endpoint != "" {
		s.Endpoint = c.Endpoint
	}
	return s
}

func codes(list string) []string {
	if list == "" {
		return []string{}
	}
	return strings.Split(list, workqueue.CodeComma)
}

// checkCodes refuses a code that would be both tried again and not.
func (s *StepSettings) checkCodes() error {
	for _, code := range codes(s.NeverRetry) {
		if slices.Contains(codes(s.RetryCodes), code) {
			return &workqueue.SettingError{Detail: fmt.Sprintf(
				"code %.80q would stand in retry_codes and in never_retry of step %s; take it out "+
					"of one of them", code, s.Name)}
		}
	}
	return nil
}

func put[T any](to *T, value *T) {
	if value != nil {
		*to = *value
	}
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
	next := s.with(c)
	if next == *s {
		return nil
	}
	if err := next.checkCodes(); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, writeSettings, run, s.Step, next.Endpoint, next.Chunk, next.ChunkAuto, next.ChunkBytes,
		next.ChunkTime, next.InFlight, next.InFlightAuto, next.Rate, next.MaxAttempts, next.RetryBackoff, next.MaxBackoff,
		next.Timeout, codes(next.RetryCodes), codes(next.NeverRetry))
	if err != nil {
		return fmt.Errorf("set step %s of run %s: %w", s.Name, run, err)
	}
	if err := s.move(ctx, tx, run, &next); err != nil {
		return err
	}
	StepDifference(d, s, &next)
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
	d.Add("chunk", ledger.Size(a.Chunk, a.ChunkAuto), ledger.Size(b.Chunk, b.ChunkAuto))
	d.Add("chunk_bytes", a.ChunkBytes, b.ChunkBytes)
	d.Add("chunk_time", a.ChunkTime.String(), b.ChunkTime.String())
	d.Add("in_flight", ledger.Size(a.InFlight, a.InFlightAuto), ledger.Size(b.InFlight, b.InFlightAuto))
	d.Add("rate", a.Rate, b.Rate)
	d.Add("max_attempts", a.MaxAttempts, b.MaxAttempts)
	d.Add("retry_backoff", a.RetryBackoff.String(), b.RetryBackoff.String())
	d.Add("max_backoff", a.MaxBackoff.String(), b.MaxBackoff.String())
	d.Add("timeout", a.Timeout.String(), b.Timeout.String())
	d.Add("retry_codes", a.RetryCodes, b.RetryCodes)
	d.Add("never_retry", a.NeverRetry, b.NeverRetry)
}
