package alerts

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // a machine may lack time zones

	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/workqueue"
	store "github.com/tranchehq/tranche/workqueue/health"
)

// Limits and defaults of rules.
const (
	MaxBytes = 16 << 10 // of YAML

	// DefaultWait is how long a condition must hold, or be over, before it is reported (`wait`).
	DefaultWait = workqueue.Duration(10 * time.Second)
	// DefaultInterval is the time between two messages about the same group (`interval`); critical ones do not wait.
	DefaultInterval = workqueue.Duration(5 * time.Minute)
)

// RunChange is an event of runs.
type RunChange string

// The run changes that rules can report.
const (
	RunCompleted RunChange = "completed"
	RunPaused    RunChange = "paused" // by its threshold or an operator
	RunWaits     RunChange = "waits_for_approval"
	RunOverdue   RunChange = "overdue"          // not sealed, or not ended, by its deadline
	RunAtRisk    RunChange = "deadline_at_risk" // by forecast it will not be done by its done_by
)

// Spec is a rule.
type Spec struct {
	Name string `json:"name"`

	When       `json:"when"`
	Plans      []string `json:"plans,omitempty" min:"1" max:"100" doc:"only conditions about one of these plans, or of endpoints"`
	Endpoints  []string `json:"endpoints,omitempty" min:"1" max:"100"`
	Namespaces []string `json:"namespaces,omitempty" min:"1" max:"100" doc:"and only conditions of runs of one of these"`

	To Receiver `json:"to"`

	// Wait is how long a condition must hold, or be over, before it is reported.
	Wait workqueue.Duration `json:"wait" min:"0s" max:"24h"`
	// Interval is the time between two messages about the same group; critical ones do not wait.
	Interval workqueue.Duration `json:"interval" min:"0s" max:"168h"`
	Quiet    *Quiet             `json:"quiet,omitempty"`

	doc *strictyaml.Document // nil: not read from YAML
}

// When says what a rule reports.
type When struct {
	Runs []RunChange `json:"runs,omitempty" enum:"completed,paused,waits_for_approval,overdue,deadline_at_risk"`
	// Health is the minimum severity of conditions; empty: none.
	Health store.Severity `json:"health,omitempty" enum:"info,warning,critical"`
	// Unacknowledged leaves out what an operator has acknowledged: with a longer wait, the rule escalates another's.
	Unacknowledged bool `json:"unacknowledged,omitempty"`
}

// Parse reads a rule from YAML, or from JSON, which is YAML too. The name is what errors call the input, and the rule's
// own unless it has a name field. Every error is a *[strictyaml.Error].
//
//	name: night-watch
//	when:
//	  runs: [completed, paused, waits_for_approval, overdue, deadline_at_risk]
//	  health: warning            # conditions of at least this severity begin and end
//	plans: [year-end]            # only what is about one of these plans or endpoints
//	endpoints: [compose]
//	namespaces: [team-a]         # and only what is about their runs
//	to:                          # one of these
//	  webhook: {url: "https://api.bank.example/alerts", secret: hooks}
//	  slack: {secret: slack-ops} # the secret is the URL
//	  teams: {secret: teams-ops}
//	  email: {to: [ops@bank.example]}
//	  command: page
//	wait: 10s
//	interval: 5m
//	quiet: {from: "22:00", to: "07:00", zone: Europe/Berlin}
func Parse(name string, text []byte) (*Spec, error) {
	doc, err := strictyaml.Open("alert", name, text, MaxBytes)
	if err != nil {
		return nil, err
	}
	s := &Spec{Name: name, Wait: DefaultWait, Interval: DefaultInterval, doc: doc}
	if err := doc.Root.Decode(s); err != nil {
		return nil, err
	}
	slices.Sort(s.Runs)
	s.Runs = slices.Compact(s.Runs)
	if s.Quiet != nil {
		s.Quiet.Zone = cmp.Or(s.Quiet.Zone, "UTC")
	}
	return s, s.check(doc)
}

// Wrong returns an error at a field, like Parse, for what only callers can check, such as a missing secret.
func (s *Spec) Wrong(field, problem string) error { return s.doc.Fail(field, "%s", problem) }

var ruleNames = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func (s *Spec) check(doc *strictyaml.Document) error {
	switch {
	case !ruleNames.MatchString(s.Name):
		return doc.Fail("name", "invalid name %.80q; want up to 64 of A-Z a-z 0-9 _ -", s.Name)
	case len(s.Runs) == 0 && s.Health == "":
		return doc.Fail("when", "say of what it tells: runs: [paused], health: warning, or both")
	}
	if s.Quiet != nil {
		if field, err := s.Quiet.check(); err != nil {
			return doc.Fail("quiet."+field, "%v", err)
		}
	}
	return s.To.checkIn(doc)
}

// Quiet is the hours in which only critical conditions are reported.
type Quiet struct {
	From string `json:"from" doc:"when it begins, like 22:00"`
	To   string `json:"to" doc:"when it ends; on the next day if before from"`
	Zone string `json:"zone" doc:"an IANA time zone; default UTC"`
}

const clockLayout = "15:04"

var errSame = errors.New("it is the same as from: that would be the whole day; pause the rule instead")

func (q *Quiet) check() (field string, err error) {
	for _, f := range []struct{ name, text string }{{"from", q.From}, {"to", q.To}} {
		if at, err := time.Parse(clockLayout, f.text); err != nil || at.Format(clockLayout) != f.text {
			return f.name, fmt.Errorf("want a time of day like \"22:00\", in quotes; this is %.20q", f.text)
		}
	}
	if q.From == q.To {
		return "to", errSame
	}
	if _, err := time.LoadLocation(q.Zone); err != nil || q.Zone == "" || strings.EqualFold(q.Zone, "local") {
		return "zone", fmt.Errorf("no time zone %.60q; use an IANA name, like Europe/Berlin or UTC", q.Zone)
	}
	return "", nil
}

// At reports whether a time is in the quiet hours, by local time in their zone. For nil it never is.
func (q *Quiet) At(t time.Time) bool {
	if q == nil {
		return false
	}
	zone, err := time.LoadLocation(q.Zone)
	if err != nil {
		return false // it was checked; better noisy than silent
	}
	now := t.In(zone).Format(clockLayout)
	if q.From < q.To {
		return q.From <= now && now < q.To
	}
	return now >= q.From || now < q.To
}
