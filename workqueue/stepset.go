package workqueue

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
)

// Upper bounds of steps whose chunk or in-flight limit nodes find themselves, unless other ones were given.
const (
	AutoChunk    = bitfield.Size
	AutoInFlight = 1024
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

func (c *StepChange) validate() error {
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
			return &SettingError{fmt.Sprintf("%s is %s; give %s to %s", s.name, *s.value, s.least, maxStepPause)}
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
			return &SettingError{fmt.Sprintf("%s is %d; give %d to %d", n.name, *n.value, n.least, n.most)}
		}
	}
	if c.Rate != nil && !(*c.Rate >= 0 && *c.Rate <= maxStepRate) {
		return &SettingError{fmt.Sprintf("rate is %g; give items a second, or 0 for no limit", *c.Rate)}
	}
	return nil
}

// stepSettings is what of a step can be changed.
type stepSettings struct {
	step         Step
	name         string
	kind         Kind
	endpoint     string
	chunk        int
	chunkAuto    bool
	chunkBytes   int
	chunkTime    time.Duration
	inFlight     int
	inFlightAuto bool
	rate         float64
	maxAttempts  int
	retryBackoff time.Duration
	maxBackoff   time.Duration
	timeout      time.Duration
	retryCodes   string // with commas
	neverRetry   string // likewise
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
	Run   RunID
	Name  string
	Steps []string // those that it has
}

func (e *UnknownStepError) Error() string {
	return fmt.Sprintf("run %s has no step %.80q; it has %s", e.Run, e.Name, strings.Join(e.Steps, ", "))
}

// Unwrap makes it an ErrNotFound.
func (e *UnknownStepError) Unwrap() error { return ErrNotFound }

// lockSteps locks all steps of a run and returns them.
func lockSteps(ctx context.Context, tx pgx.Tx, run RunID) ([]stepSettings, error) {
	rows, err := tx.Query(ctx, lockSettings, run)
	if err != nil {
		return nil, fmt.Errorf("lock the steps of run %s: %w", run, err)
	}
	steps, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (s stepSettings, err error) {
		return s, row.Scan(&s.step, &s.name, &s.kind, &s.endpoint, &s.chunk, &s.chunkAuto, &s.chunkBytes, &s.chunkTime,
			&s.inFlight, &s.inFlightAuto, &s.rate, &s.maxAttempts, &s.retryBackoff, &s.maxBackoff, &s.timeout, &s.retryCodes,
			&s.neverRetry)
	})
	if err != nil {
		return nil, fmt.Errorf("lock the steps of run %s: %w", run, err)
	}
	if len(steps) == 0 {
		return nil, fmt.Errorf("run %s: %w", run, ErrNotFound)
	}
	return steps, nil
}

// stepNamed returns the step with the name, or the first when there is no name.
func stepNamed(steps []stepSettings, run RunID, name string) (*stepSettings, error) {
	for i := range steps {
		if name == "" || steps[i].name == name {
			return &steps[i], nil
		}
	}
	return nil, &UnknownStepError{run, name, stepNames(steps)}
}

func stepNames(steps []stepSettings) (names []string) {
	for i := range steps {
		names = append(names, steps[i].name)
	}
	return names
}

// with returns the settings after a change.
func (s stepSettings) with(c *StepChange) stepSettings {
	if c.ChunkAuto {
		s.chunk, s.chunkAuto = AutoChunk, true
	} else if c.Chunk != nil {
		s.chunkAuto, s.chunkTime = false, 0
	}
	if c.InFlightAuto {
		s.inFlight, s.inFlightAuto = AutoInFlight, true
	} else if c.InFlight != nil {
		s.inFlightAuto = false
	}
	put(&s.chunk, c.Chunk)
	put(&s.chunkBytes, c.ChunkBytes)
	put(&s.chunkTime, c.ChunkTime)
	put(&s.inFlight, c.InFlight)
	put(&s.rate, c.Rate)
	put(&s.maxAttempts, c.MaxAttempts)
	put(&s.retryBackoff, c.RetryBackoff)
	if s.maxBackoff > 0 {
		s.maxBackoff = max(s.maxBackoff, s.retryBackoff)
	}
	put(&s.maxBackoff, c.MaxBackoff)
	put(&s.timeout, c.Timeout)
	if c.RetryCodes != nil {
		s.retryCodes = strings.Join(*c.RetryCodes, codeComma)
	}
	if c.NeverRetry != nil {
		s.neverRetry = strings.Join(*c.NeverRetry, codeComma)
	}
	if c.Endpoint != "" {
		s.endpoint = c.Endpoint
	}
	return s
}

// codeComma stands between codes, which have no commas.
const codeComma = ", "

func codes(list string) []string {
	if list == "" {
		return []string{}
	}
	return strings.Split(list, codeComma)
}

// checkCodes refuses a code that would be both tried again and not.
func (s *stepSettings) checkCodes() error {
	for _, code := range codes(s.neverRetry) {
		if slices.Contains(codes(s.retryCodes), code) {
			return &SettingError{fmt.Sprintf("code %.80q would stand in retry_codes and in never_retry of step %s; take it out "+
				"of one of them", code, s.name)}
		}
	}
	return nil
}

func put[T any](to *T, value *T) {
	if value != nil {
		*to = *value
	}
}

// change writes new settings of a locked step, and adds to before and after what differs.
func (s *stepSettings) change(ctx context.Context, tx pgx.Tx, run RunID, c *StepChange, d *difference) error {
	if c.Endpoint != "" && s.kind != KindEndpoint && s.kind != KindRequest {
		return &SettingError{fmt.Sprintf("endpoint %s: step %s asks no endpoint, nodes do its work themselves (%s); leave "+
			"the endpoint out, or start a run of a plan with another step", c.Endpoint, s.name, s.endpoint)}
	}
	next := s.with(c)
	if next == *s {
		return nil
	}
	if err := next.checkCodes(); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, writeSettings, run, s.step, next.endpoint, next.chunk, next.chunkAuto, next.chunkBytes,
		next.chunkTime, next.inFlight, next.inFlightAuto, next.rate, next.maxAttempts, next.retryBackoff, next.maxBackoff,
		next.timeout, codes(next.retryCodes), codes(next.neverRetry))
	if err != nil {
		return fmt.Errorf("set step %s of run %s: %w", s.name, run, err)
	}
	if err := s.move(ctx, tx, run, &next); err != nil {
		return err
	}
	stepDifference(d, s, &next)
	*s = next
	return nil
}

// move has the step's work found where it is to be done now, and by which limit.
func (s *stepSettings) move(ctx context.Context, tx pgx.Tx, run RunID, next *stepSettings) error {
	if next.endpoint != s.endpoint {
		if _, err := lockSlices(ctx, tx, slicesOfRun, run); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, pinSlices, run, s.step, s.endpoint, next.endpoint); err != nil {
			return fmt.Errorf("note where the slices of run %s were sent: %w", run, err)
		}
	}
	if next.endpoint == s.endpoint && next.inFlightAuto == s.inFlightAuto {
		return nil
	}
	if _, err := tx.Exec(ctx, lockPlaced, run); err != nil {
		return fmt.Errorf("lock the blocks of run %s: %w", run, err)
	}
	if _, err := tx.Exec(ctx, placeBlocks, run, s.step, next.endpoint, next.inFlightAuto); err != nil {
		return fmt.Errorf("move the ready items of run %s: %w", run, err)
	}
	return nil
}

// difference is what a change made different, for the audit log and for people.
type difference struct{ before, after map[string]any }

func (d *difference) add(name string, before, after any) {
	if before == after {
		return
	}
	if d.before == nil {
		d.before, d.after = map[string]any{}, map[string]any{}
	}
	d.before[name], d.after[name] = before, after
}

// join takes in what is different of one step, under its name where there are several.
func (d *difference) join(of *difference, step string, several bool) {
	for name, before := range of.before {
		if several {
			d.add(step+"."+name, before, of.after[name])
		} else {
			d.add(name, before, of.after[name])
		}
	}
}

func stepDifference(d *difference, a, b *stepSettings) {
	d.add("endpoint", a.endpoint, b.endpoint)
	d.add("chunk", size(a.chunk, a.chunkAuto), size(b.chunk, b.chunkAuto))
	d.add("chunk_bytes", a.chunkBytes, b.chunkBytes)
	d.add("chunk_time", a.chunkTime.String(), b.chunkTime.String())
	d.add("in_flight", size(a.inFlight, a.inFlightAuto), size(b.inFlight, b.inFlightAuto))
	d.add("rate", a.rate, b.rate)
	d.add("max_attempts", a.maxAttempts, b.maxAttempts)
	d.add("retry_backoff", a.retryBackoff.String(), b.retryBackoff.String())
	d.add("max_backoff", a.maxBackoff.String(), b.maxBackoff.String())
	d.add("timeout", a.timeout.String(), b.timeout.String())
	d.add("retry_codes", a.retryCodes, b.retryCodes)
	d.add("never_retry", a.neverRetry, b.neverRetry)
}

// size is a number, or that nodes find it, with the bound that they keep to.
func size(n int, auto bool) string {
	if auto {
		return fmt.Sprintf("auto, at most %d", n)
	}
	return fmt.Sprint(n)
}
