package schedule

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/workqueue"
)

// Limits and defaults of schedules.
const (
	MaxBytes = 64 << 10 // of the YAML

	MinEvery = time.Minute // the finest that cron knows, too
	MaxEvery = 366 * 24 * time.Hour

	// The longest `jitter` and `start_deadline`.
	MaxJitter     = 24 * time.Hour
	MaxDeadline   = 31 * 24 * time.Hour
	MaxParams     = 100
	MaxTextBytes  = 4 << 10 // of a path, a URL or a param
	MaxQueryBytes = 64 << 10

	DefaultZone          = "UTC"
	DefaultMisfireLimit  = 10
	MaxMisfireLimit      = 100
	DefaultStartAttempts = 5
	MaxStartAttempts     = 100
)

// Overlap says what happens at a due time while a run of the schedule is under way.
type Overlap string

// What happens then.
const (
	OverlapSkip      Overlap = "skip"       // the due time is skipped
	OverlapQueue     Overlap = "queue"      // its run starts when those before it have ended
	OverlapCancelOld Overlap = "cancel_old" // the others are cancelled
)

// Misfire says what happens with due times that passed while nobody could start anything.
type Misfire string

// What happens with them.
const (
	MisfireOnce Misfire = "once" // one run, for the newest
	MisfireAll  Misfire = "all"  // a run for each of the newest, up to a limit
	MisfireNone Misfire = "none" // nothing
)

// OnLate says what happens with a run that has not ended at the end of its window.
type OnLate string

// What happens with it, beside an event.
const (
	LateReport OnLate = "report" // nothing
	LatePause  OnLate = "pause"
	LateCancel OnLate = "cancel"
)

// Spec is a schedule.
type Spec struct {
	Name  string             `json:"name"`
	Cron  string             `json:"cron,omitempty"`  // one of both
	Every workqueue.Duration `json:"every,omitempty"` // counted from 1970-01-01T00:00Z
	Zone  string             `json:"zone"`            // of IANA

	Plan     string            `json:"plan,omitempty"`     // NAME or NAME@VERSION, of the record; or
	Endpoint string            `json:"endpoint,omitempty"` // of a run with one step
	Settings gather.Overrides  `json:"settings,omitzero"`  // laid over the plan
	RunName  string            `json:"run_name,omitempty"` // of the runs; may have variables
	Params   map[string]string `json:"params,omitempty"`   // of the runs; may have variables
	Items    Items             `json:"items"`

	Overlap      Overlap            `json:"overlap"`
	Misfire      Misfire            `json:"misfire"`
	MisfireLimit int                `json:"misfire_limit"`
	Jitter       workqueue.Duration `json:"jitter,omitempty"`
	Window       Window             `json:"window,omitzero"`
	OnLate       OnLate             `json:"on_late"`
	// after the planned start; then it is missed; 0: none
	StartDeadline workqueue.Duration `json:"start_deadline,omitempty"`
	StartAttempts int                `json:"start_attempts"`

	rule  rule
	clock clock
}

// Items says where the items of a run come from. One of File, URL and SQL is set.
type Items struct {
	File string `json:"file,omitempty"` // below the directory that nodes are given; may have variables
	URL  string `json:"url,omitempty"`  // may have variables
	SQL  *SQL   `json:"sql,omitempty"`

	Format      string `json:"format,omitempty"` // csv, ndjson or parquet; empty: recognised
	Key         string `json:"key,omitempty"`    // the column or field that is the key
	OnDuplicate string `json:"on_duplicate,omitempty"`
}

// SQL is a query whose rows are the items.
type SQL struct {
	Source string `json:"source"` // of the operator's connections
	Query  string `json:"query"`  // may have variables, but no params
}

// UnmarshalJSON reads a schedule that was stored. Parse has checked it.
func (s *Spec) UnmarshalJSON(text []byte) error {
	type stored Spec
	if err := json.Unmarshal(text, (*stored)(s)); err != nil {
		return err
	}
	if s.Every != 0 && interval(s.Every) < interval(MinEvery) {
		return fmt.Errorf("schedule %s: every: %s is less than %s", s.Name, s.Every, MinEvery)
	}
	if field, err := s.compile(); err != nil {
		return fmt.Errorf("schedule %s: %s: %w", s.Name, field, err)
	}
	return nil
}

// rule yields due times.
type rule interface {
	// next returns the first due time after another, or the zero time when there is none.
	next(after time.Time) time.Time
}

// farthest is the last year that is looked into: later ones cannot be written as JSON.
const farthest = 9000

// Next returns the first due time after another one. There is none once the calendar ends.
func (s *Spec) Next(after time.Time) (due time.Time, ok bool) {
	if after.Year() > farthest {
		return time.Time{}, false
	}
	due = s.rule.next(after)
	return due.UTC(), !due.IsZero()
}

// NextN returns the first n due times after another one.
func (s *Spec) NextN(after time.Time, n int) []time.Time {
	out := make([]time.Time, 0, n)
	for len(out) < n {
		due, ok := s.Next(after)
		if !ok {
			break
		}
		out, after = append(out, due), due
	}
	return out
}

// interval is the rule of schedules with every.
type interval time.Duration

func (r interval) next(after time.Time) time.Time {
	step := int64(time.Duration(r) / time.Second)
	at := after.Unix()
	past := at % step
	if past < 0 { // before 1970
		past += step
	}
	return time.Unix(at-past+step, 0)
}
