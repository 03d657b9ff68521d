package alerts

import (
	"cmp"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"
	_ "time/tzdata" // a machine may have no time zones

	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/workqueue"
	store "github.com/tranchehq/tranche/workqueue/health"
)

// Limits and defaults of rules.
const (
	MaxBytes = 16 << 10 // of the YAML

	// A condition that holds, or is over, until it is told (`wait`).
	DefaultWait = workqueue.Duration(10 * time.Second)
	// Between two messages about the same (`interval`); what is critical does not wait for it.
	DefaultInterval = workqueue.Duration(5 * time.Minute)
)

// RunChange is something that becomes of runs.
type RunChange string

// What rules tell of runs.
const (
	RunCompleted RunChange = "completed"
	RunPaused    RunChange = "paused" // by its threshold, or by an operator
	RunWaits     RunChange = "waits_for_approval"
	RunOverdue   RunChange = "overdue"          // not sealed in time, or not done by its time
	RunAtRisk    RunChange = "deadline_at_risk" // by forecast it will not be done by its time
)

// Spec is a rule.
type Spec struct {
	Name string `json:"name"`

	When      `json:"when"`
	Plans     []string `json:"plans,omitempty" min:"1" max:"100"` // with Endpoints: only what is about one of these
	Endpoints []string `json:"endpoints,omitempty" min:"1" max:"100"`

	To Receiver `json:"to"`

	// Wait is how long a condition holds, or is over, before it is told.
	Wait workqueue.Duration `json:"wait" min:"0s" max:"24h"`
	// Interval is between two messages about the same; what is critical does not wait for it.
	Interval workqueue.Duration `json:"interval" min:"0s" max:"168h"`
	Quiet    *Quiet             `json:"quiet,omitempty"`

	doc *strictyaml.Document // nil: it was not read from YAML
}

// When says what a rule tells.
type When struct {
	Runs []RunChange `json:"runs,omitempty" enum:"completed,paused,waits_for_approval,overdue,deadline_at_risk"`
	// Health: conditions of this severity at least; empty: none.
	Health store.Severity `json:"health,omitempty" enum:"info,warning,critical"`
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

// Wrong returns the error that Parse would, at the place of a field: for what only others can know, like that there is
// no such secret.
func (s *Spec) Wrong(field, problem string) error { return s.doc.Fail(field, "%s", problem) }

// ruleNames are what rules, and programs, may be called.
var ruleNames = regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)

func (s *Spec) check(doc *strictyaml.Document) error {
	switch {
	case !ruleNames.MatchString(s.Name):
		return doc.Fail("name", "%.80q is no name; want up to 64 of A-Z a-z 0-9 _ -", s.Name)
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

// Quiet is the hours in which only what is critical is told.
type Quiet struct {
	From string `json:"from"` // a time of day, 22:00
	To   string `json:"to"`   // the first time that is not quiet; before From: of the next day
	Zone string `json:"zone"` // of IANA
}

const clockLayout = "15:04"

var errSame = errors.New("it is the same as from: that would be the whole day; pause the rule instead")

// check names the field that is wrong.
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
		return "zone", fmt.Errorf("there is no time zone %.60q; want a name of IANA, like Europe/Berlin or UTC", q.Zone)
	}
	return "", nil
}

// At reports whether a time is in the quiet hours, by the clock on the wall of their zone. nil: no time is.
func (q *Quiet) At(t time.Time) bool {
	if q == nil {
		return false
	}
	zone, err := time.LoadLocation(q.Zone)
	if err != nil {
		return false // it was checked; rather too loud than silent
	}
	now := t.In(zone).Format(clockLayout)
	if q.From < q.To {
		return q.From <= now && now < q.To
	}
	return now >= q.From || now < q.To
}
