package alerts

import (
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
	DefaultWait = 10 * time.Second
	MaxWait     = 24 * time.Hour
	// Between two messages about the same (`interval`); what is critical does not wait for it.
	DefaultInterval = 5 * time.Minute
	MaxInterval     = 7 * 24 * time.Hour

	maxNames      = 100
	maxRecipients = 20
)

// RunChange is something that becomes of runs.
type RunChange string

// What rules tell of runs.
const (
	RunCompleted     RunChange = "completed"
	RunPaused        RunChange = "paused" // by its threshold, or by an operator
	RunWaits         RunChange = "waits_for_approval"
	RunOverdue       RunChange = "overdue"      // not sealed in time, or not ended in time
	RunWillMissTimes RunChange = "will_be_late" // as fast as it goes, it does not end in time
)

// Spec is a rule.
type Spec struct {
	Name string `json:"name"`

	Runs      []RunChange    `json:"runs,omitempty"`
	Health    store.Severity `json:"health,omitempty"` // conditions of this severity at least; empty: none
	Plans     []string       `json:"plans,omitempty"`  // with Endpoints: only what is about one of these
	Endpoints []string       `json:"endpoints,omitempty"`

	To Receiver `json:"to"`

	Wait     workqueue.Duration `json:"wait"`     // how long a condition holds, or is over, before it is told
	Interval workqueue.Duration `json:"interval"` // between two messages about the same
	Quiet    *Quiet             `json:"quiet,omitempty"`
}

// Parse reads a rule from YAML, or from JSON, which is YAML too. The name is what errors call the input, and the rule's
// own unless it has a name field. Every error is a *[strictyaml.Error].
//
//	name: night-watch
//	when:
//	  runs: [completed, paused, waits_for_approval, overdue, will_be_late]
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
	s := &Spec{Name: name, Wait: workqueue.Duration(DefaultWait), Interval: workqueue.Duration(DefaultInterval)}
	if err := s.read(doc.Root); err != nil {
		return nil, err
	}
	return s, s.check(doc)
}

// Locate returns the error that Parse would, at the place of a field: for what only others can know, like that there is
// no such secret.
func Locate(name string, text []byte, field, problem string) error {
	doc, err := strictyaml.Open("alert", name, text, MaxBytes)
	if err != nil {
		return err
	}
	if err := (&Spec{}).read(doc.Root); err != nil {
		return err
	}
	return doc.Fail(field, "%s", problem)
}

func (s *Spec) read(v strictyaml.Value) error {
	return v.Fields(
		strictyaml.Field{Name: "name", Read: strictyaml.Text(&s.Name)},
		strictyaml.Field{Name: "when", Read: s.readWhen},
		strictyaml.Field{Name: "plans", Read: names(&s.Plans)},
		strictyaml.Field{Name: "endpoints", Read: names(&s.Endpoints)},
		strictyaml.Field{Name: "to", Read: s.To.read},
		strictyaml.Field{Name: "wait", Read: strictyaml.Duration((*time.Duration)(&s.Wait), 0, MaxWait)},
		strictyaml.Field{Name: "interval", Read: strictyaml.Duration((*time.Duration)(&s.Interval), 0, MaxInterval)},
		strictyaml.Field{Name: "quiet", Read: func(v strictyaml.Value) error {
			s.Quiet = &Quiet{Zone: "UTC"}
			return s.Quiet.read(v)
		}},
	)
}

func (s *Spec) readWhen(v strictyaml.Value) error {
	return v.Fields(
		strictyaml.Field{Name: "runs", Read: func(v strictyaml.Value) error {
			return v.List(func(v strictyaml.Value) error {
				var c RunChange
				err := strictyaml.OneOf(&c, RunCompleted, RunPaused, RunWaits, RunOverdue, RunWillMissTimes)(v)
				if !slices.Contains(s.Runs, c) {
					s.Runs = append(s.Runs, c)
				}
				return err
			})
		}},
		strictyaml.Field{Name: "health", Read: strictyaml.OneOf(&s.Health, store.Info, store.Warning, store.Critical)},
	)
}

func names(into *[]string) func(strictyaml.Value) error {
	return func(v strictyaml.Value) error {
		if err := strictyaml.SomeTexts(into)(v); err != nil {
			return err
		}
		if len(*into) > maxNames {
			return v.Fail("there are %d, and at most %d are allowed", len(*into), maxNames)
		}
		return nil
	}
}

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

func (q *Quiet) read(v strictyaml.Value) error {
	return v.Fields(
		strictyaml.Field{Name: "from", Read: strictyaml.Text(&q.From)},
		strictyaml.Field{Name: "to", Read: strictyaml.Text(&q.To)},
		strictyaml.Field{Name: "zone", Read: strictyaml.Text(&q.Zone)},
	)
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
