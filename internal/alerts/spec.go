package alerts

import (
	"cmp"
	"fmt"
	"net/mail"
	"regexp"
	"slices"
	"time"
	_ "time/tzdata" // a machine may have no time zones

	"github.com/tranchehq/tranche/gather/fetch/httpfetch"
	"github.com/tranchehq/tranche/gather/strictyaml"
	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/workqueue"
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
	RunCompleted     RunChange = "completed"
	RunPaused        RunChange = "paused" // by its threshold, or by an operator
	RunWaits         RunChange = "waits_for_approval"
	RunOverdue       RunChange = "overdue"      // not sealed in time, or not ended in time
	RunWillMissTimes RunChange = "will_be_late" // as fast as it goes, it does not end in time
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
	Runs []RunChange `json:"runs,omitempty" enum:"completed,paused,waits_for_approval,overdue,will_be_late"`
	// Health: conditions of this severity at least; empty: none.
	Health health.Severity `json:"health,omitempty" enum:"info,warning,critical"`
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
	To []string `json:"to" min:"1" max:"20"`
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
		if _, err := httpfetch.CheckWebhookURL(r.Webhook.URL); err != nil {
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
	if len(e.To) == 0 {
		return doc.Fail("to.email", "it has no to: name the addresses")
	}
	for i, to := range e.To {
		if a, err := mail.ParseAddress(to); err != nil || a.Name != "" || a.Address != to {
			return doc.Fail(fmt.Sprintf("to.email.to[%d]", i), "want an address like ops@bank.example; this is %.80q", to)
		}
	}
	return nil
}
