package alerts

import (
	"fmt"
	"net/mail"
	"regexp"
	"slices"
	"time"
	_ "time/tzdata" // a machine may have no time zones

	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/internal/webhook"
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

// Receiver is who is told. One of its members is set.
type Receiver struct {
	Webhook *Webhook `json:"webhook,omitempty"`
	Slack   *Chat    `json:"slack,omitempty"`
	Teams   *Chat    `json:"teams,omitempty"`
	Email   *Email   `json:"email,omitempty"`
	Command string   `json:"command,omitempty"` // a name of serve --alert-program
}

// Webhook is a URL, and the secret that signs what goes there.
type Webhook struct {
	URL    string `json:"url"`
	Secret string `json:"secret"`
}

// Chat is a channel whose URL is a secret.
type Chat struct {
	Secret string `json:"secret"`
}

// Email is people.
type Email struct {
	To []string `json:"to"`
}

// Kind is the name of the member that is set.
func (r *Receiver) Kind() string {
	switch {
	case r.Webhook != nil:
		return "webhook"
	case r.Slack != nil:
		return "slack"
	case r.Teams != nil:
		return "teams"
	case r.Email != nil:
		return "email"
	}
	return "command"
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

func (r *Receiver) read(v strictyaml.Value) error {
	chat := func(into **Chat) func(strictyaml.Value) error {
		return func(v strictyaml.Value) error {
			*into = &Chat{}
			return v.Fields(strictyaml.Field{Name: "secret", Read: strictyaml.Text(&(*into).Secret)})
		}
	}
	return v.Fields(
		strictyaml.Field{Name: "webhook", Read: func(v strictyaml.Value) error {
			r.Webhook = &Webhook{}
			return v.Fields(
				strictyaml.Field{Name: "url", Read: strictyaml.Text(&r.Webhook.URL)},
				strictyaml.Field{Name: "secret", Read: strictyaml.Text(&r.Webhook.Secret)},
			)
		}},
		strictyaml.Field{Name: "slack", Read: chat(&r.Slack)},
		strictyaml.Field{Name: "teams", Read: chat(&r.Teams)},
		strictyaml.Field{Name: "email", Read: func(v strictyaml.Value) error {
			r.Email = &Email{}
			return v.Fields(strictyaml.Field{Name: "to", Read: strictyaml.SomeTexts(&r.Email.To)})
		}},
		strictyaml.Field{Name: "command", Read: strictyaml.Text(&r.Command)},
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
	return s.To.check(doc)
}

func (r *Receiver) check(doc *strictyaml.Document) error {
	given := 0
	for _, set := range []bool{r.Webhook != nil, r.Slack != nil, r.Teams != nil, r.Email != nil, r.Command != ""} {
		if set {
			given++
		}
	}
	if given != 1 {
		return doc.Fail("to", "want one of webhook, slack, teams, email and command; for several receivers apply "+
			"several rules")
	}
	switch {
	case r.Webhook != nil && r.Webhook.URL == "":
		return doc.Fail("to.webhook", "it has no url")
	case r.Webhook != nil && r.Webhook.Secret == "":
		return doc.Fail("to.webhook", "it has no secret: name one of the operator's file, which signs what is sent")
	case r.Webhook != nil:
		if _, err := webhook.CheckURL(r.Webhook.URL); err != nil {
			return doc.Fail("to.webhook.url", "%v", err)
		}
	case r.Slack != nil && r.Slack.Secret == "" || r.Teams != nil && r.Teams.Secret == "":
		return doc.Fail("to."+r.Kind(), "it has no secret: name one of the operator's file, which is the channel's URL")
	case r.Email != nil:
		return r.Email.check(doc)
	}
	return nil
}

func (e *Email) check(doc *strictyaml.Document) error {
	switch {
	case len(e.To) == 0:
		return doc.Fail("to.email", "it has no to: name the addresses")
	case len(e.To) > maxRecipients:
		return doc.Fail("to.email.to", "there are %d addresses, and at most %d are allowed", len(e.To), maxRecipients)
	}
	for i, to := range e.To {
		if a, err := mail.ParseAddress(to); err != nil || a.Name != "" || a.Address != to {
			return doc.Fail(fmt.Sprintf("to.email.to[%d]", i), "want an address like ops@bank.example; this is %.80q", to)
		}
	}
	return nil
}
