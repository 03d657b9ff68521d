// Package schedule parses schedules from YAML, computes due times, and starts the run of each while its node leads. It
// also reads items from files below the operator's directory, and from URLs.
//
// A [Spec] comes from [Parse]. [Spec.Next] is its due time after another; [Spec.Planned] is when the run of a due time
// is to start, with jitter and window; [Spec.DoneBy] is when it should have ended; [Spec.Due] divides the due
// times that have passed by the misfire policy; [Spec.Resolve] fills a due time into params, file names, URLs and
// queries.
//
// Expressions are parsed and stepped by robfig/cron, only in UTC, where every day has 24 hours. This package applies
// the zone's clock:
//
//   - With fixed hours, a due time is the first instant at which the clock shows that time or a later one. So a skipped
//     time is due when the clock jumps over it, and a repeated one the first time.
//   - With an hour that begins with *, it is every instant at which the clock shows a matching time: none is repeated
//     or lost.
//   - An interval (every) counts from 1970-01-01T00:00Z, and does not restart when a schedule is applied again.
//
// Parse neither panics nor takes long on any text, and an expression that never fires is an error. A due time has one
// run, even if nodes fail: the occurrence's key is unique in PostgreSQL and the run's idempotency key, and the run
// begins in the transaction that marks the occurrence as started under the leader's lease. Due times are compared with
// the database's time only. Files are only read below the operator's directory, and URLs only requested if steps may
// call them. An incomplete answer of a URL is refused, and so is a file that may still be written.
//
// workqueue/schedule stores schedules, and the API starts runs. Spec, Files and Web are safe for concurrent use.
package schedule

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/workqueue"
)

// Limits and defaults of schedules.
const (
	MaxBytes = 64 << 10 // of the YAML

	MinEvery = time.Minute // also the finest of cron
	MaxEvery = 366 * 24 * time.Hour

	maxParamBytes = 4 << 10

	DefaultZone          = "UTC"
	DefaultMisfireLimit  = 10
	DefaultStartAttempts = 5
)

// Overlap is the policy for a due time while a run of the schedule is in progress.
type Overlap string

// Overlap policies.
const (
	OverlapSkip      Overlap = "skip"       // skip the due time
	OverlapQueue     Overlap = "queue"      // start its run after the earlier ones end
	OverlapCancelOld Overlap = "cancel_old" // cancel the earlier runs
)

// Misfire is the policy for due times that passed without a leader.
type Misfire string

// Misfire policies.
const (
	MisfireOnce Misfire = "once" // one run, for the newest
	MisfireAll  Misfire = "all"  // a run for each of the newest, up to a limit
	MisfireNone Misfire = "none" // no run
)

// OnLate is the policy for a run still in progress at the end of its window.
type OnLate string

// OnLate policies, in addition to an event.
const (
	LateReport OnLate = "report" // no action
	LatePause  OnLate = "pause"
	LateCancel OnLate = "cancel"
)

// Spec is a schedule.
type Spec struct {
	Name  string             `json:"name"`
	Cron  string             `json:"cron,omitempty" doc:"minute hour day-of-month month day-of-week; or every"`
	Every workqueue.Duration `json:"every,omitempty" min:"1m" max:"8784h" doc:"counted from 1970-01-01T00:00Z"`
	Zone  string             `json:"zone" doc:"an IANA time zone; default UTC"`

	Plan     string            `json:"plan,omitempty" doc:"a saved plan, NAME or NAME@VERSION; or endpoint"`
	Endpoint string            `json:"endpoint,omitempty" doc:"for runs of one step"`
	Settings gather.Overrides  `json:"settings,omitzero" doc:"settings that override the plan"`
	RunName  string            `json:"run_name,omitempty" max:"4096" doc:"name of the runs; may have variables"`
	Params   map[string]string `json:"params,omitempty" max:"100" doc:"parameters of the runs; may have variables"`
	Items    Items             `json:"items"`

	Overlap      Overlap            `json:"overlap" enum:"skip,queue,cancel_old"`
	Misfire      Misfire            `json:"misfire" enum:"once,all,none"`
	MisfireLimit int                `json:"misfire_limit" min:"1" max:"100"`
	Jitter       workqueue.Duration `json:"jitter,omitempty" min:"0s" max:"24h"`
	Window
	OnLate OnLate `json:"on_late" enum:"report,pause,cancel"`
	// StartDeadline is after the planned start; then it is missed; 0: none.
	StartDeadline workqueue.Duration `json:"start_deadline,omitempty" min:"1m" max:"744h"`
	StartAttempts int                `json:"start_attempts" min:"1" max:"100"`

	rule  rule
	clock clock
	doc   *strictyaml.Document // nil: not parsed from YAML
}

// Items is the source of a run's items: one of File, URL and SQL.
type Items struct {
	// File is below the nodes' directory of files; it may have variables.
	File string `json:"file,omitempty" max:"4096"`
	URL  string `json:"url,omitempty" max:"4096" doc:"where to get the items; may have variables"`
	SQL  *SQL   `json:"sql,omitempty"`

	Format      string `json:"format,omitempty" enum:"csv,ndjson,parquet" doc:"default: detected"`
	Key         string `json:"key,omitempty" max:"4096" doc:"column or field of the key"`
	OnDuplicate string `json:"on_duplicate,omitempty" enum:"error,skip,allow"`
}

// SQL is a query whose rows are the items.
type SQL struct {
	Source string `json:"source" max:"4096" doc:"a source of the operator's connections"`
	Query  string `json:"query" max:"65536" doc:"SQL whose rows are the items; may have variables, but no params"`
}

// UnmarshalJSON reads a stored schedule, which Parse has checked.
func (s *Spec) UnmarshalJSON(text []byte) error {
	type stored Spec
	if err := json.Unmarshal(text, (*stored)(s)); err != nil {
		return err
	}
	if field, err := s.compile(); err != nil {
		return fmt.Errorf("schedule %s: %s: %w", s.Name, field, err)
	}
	return nil
}

type rule interface {
	// next returns the first due time after another, or zero.
	next(after time.Time) time.Time
}

// farthest is the last year considered: later ones have no JSON form.
const farthest = 9000

// Next returns the first due time after another one, if there is one before the calendar ends.
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

// OnTime is how late a start still counts as on time. A new leader with a slow round takes less.
const OnTime = time.Minute

// MaxMissed limits the missed due times returned.
const MaxMissed = 100

// horizon is how far back due times are considered.
const horizon = 20 * 366 * 24 * time.Hour

// Passed sorts the due times that have passed.
type Passed struct {
	Fire   []time.Time // to be fired, oldest first
	Missed []time.Time // oldest first; only the newest MaxMissed
	More   bool        // still older ones were missed
	Next   time.Time   // the next due time; zero: none
}

// Due sorts the due times after last until now: the misfire policy applies to those long past their planned start.
func (s *Spec) Due(last, now time.Time) Passed {
	var out Passed
	out.Next, _ = s.Next(now)
	dues, more := s.newest(last, now, MaxMissed+1)
	var missed []time.Time
	for _, due := range dues {
		if now.Sub(s.Planned(due)) <= OnTime { // with jitter perhaps before a missed one
			out.Fire = append(out.Fire, due)
		} else {
			missed = append(missed, due)
		}
	}
	fire := len(missed) // index of the first to fire nevertheless
	switch {
	case s.Misfire == MisfireAll:
		fire = max(0, fire-s.MisfireLimit)
	case s.Misfire == MisfireOnce && len(out.Fire) == 0:
		fire = max(0, fire-1)
	}
	missed, out.Fire = missed[:fire], append(missed[fire:], out.Fire...)
	slices.SortFunc(out.Fire, time.Time.Compare)
	out.More = more && fire > 0 || len(missed) > MaxMissed
	out.Missed = missed[max(0, len(missed)-MaxMissed):]
	return out
}

// newest returns the last n due times after last until now. Rules only go forward: it looks back in doubling steps.
func (s *Spec) newest(last, now time.Time, n int) (dues []time.Time, more bool) {
	if oldest := now.Add(-horizon); last.Before(oldest) {
		last = oldest
	}
	for back := time.Duration(s.Every) + time.Hour; ; back *= 2 {
		from := now.Add(-back)
		whole := !from.After(last)
		if whole {
			from = last
		}
		dues = s.between(from, now)
		if len(dues) > n {
			return dues[len(dues)-n:], true
		}
		if whole {
			return dues, false
		}
	}
}

func (s *Spec) between(from, to time.Time) (dues []time.Time) {
	for due, ok := s.Next(from); ok && !due.After(to); due, ok = s.Next(due) {
		dues = append(dues, due)
	}
	return dues
}

// Warnings returns settings that are valid but possibly unintended.
func (s *Spec) Warnings(now time.Time) []string {
	out := []string{}
	if e, ok := s.rule.(interface{ warnings() []string }); ok {
		out = append(out, e.warnings()...)
	}
	if s.Misfire == MisfireAll && s.Overlap == OverlapSkip {
		out = append(out, "misfire: all with overlap: skip: of the due times that are fired late, one at a time, "+
			"those are skipped whose predecessor is in progress; overlap: queue has them wait")
	}
	if shortest := s.shortest(now); s.Jitter > 0 && time.Duration(s.Jitter) >= shortest && shortest > 0 {
		out = append(out, fmt.Sprintf("jitter: up to %s is longer than the %s between two due times, whose runs may "+
			"start in another order", s.Jitter, shortest))
	}
	return out
}

func (s *Spec) shortest(now time.Time) (shortest time.Duration) {
	dues := s.NextN(now, 10)
	for i := 1; i < len(dues); i++ {
		if between := dues[i].Sub(dues[i-1]); shortest == 0 || between < shortest {
			shortest = between
		}
	}
	return shortest
}

// warnings explains the meaning of both kinds of days together, which differs among programs for */2.
func (e *expression) warnings() []string {
	month, week := e.days[0], e.days[1]
	all := func(field string) bool { return field == "*" || field == "?" || field == "*/1" || field == "?/1" }
	if all(month) || all(week) {
		return nil
	}
	text := fmt.Sprintf("cron: day-of-month %s and day-of-week %s: it is due on the days of either, not only on those of "+
		"both", month, week)
	if strings.Contains(month, "*/") || strings.Contains(week, "*/") {
		text += "; some programs take */n together with the other to mean both, and this one does not"
	}
	return []string{text + "; write * for one of them if that is not what you want"}
}
