package alerts

import (
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/alert"
	store "github.com/tranchehq/tranche/workqueue/health"
)

type seen struct {
	store.Condition

	key       string // the subject, plus what distinguishes it within its kind
	change    RunChange
	plan      string
	namespace string   // of the run; empty: it is about none
	of        []string // endpoints
	only      bool     // only a change of a run, not a health condition
	happened  bool
	muted     bool // muted: it holds, but is not notified
	taken     bool // acknowledged by an operator
}

type facts struct {
	began     time.Time // by the database's clock
	report    *health.Report
	completed []alert.Completion
	labels    map[workqueue.RunID]alert.Label
}

func (f *facts) all() (all []seen) {
	for _, c := range slices.Concat(f.report.Conditions, f.report.Muted) {
		rule := c.Kind.Rule()
		s := seen{Condition: c, key: c.Subject, change: RunChange(rule.Change),
			muted: c.Mark != nil && c.Mark.State == store.Muted, taken: c.Mark != nil && c.Mark.State == store.Acknowledged}
		if run, err := uuid.Parse(c.Subject); err == nil {
			label := f.labels[workqueue.RunID(run)]
			s.plan, s.namespace, s.of = label.Plan, label.Namespace, label.Endpoints
		} else if rule.Of == "endpoint" || rule.Stops == store.StopsEndpoint {
			s.of = []string{c.Subject}
		}
		all = append(all, s)
	}
	for i := range f.completed {
		c := &f.completed[i]
		all = append(all, seen{change: RunCompleted, key: c.Event, plan: c.Plan, namespace: c.Namespace, of: c.Endpoints,
			only: true, happened: true, Condition: f.hasCompleted(c)})
	}
	return all
}

func (f *facts) hasCompleted(c *alert.Completion) store.Condition {
	row := store.Row{"subject": c.Run.String(), "since": c.At, "name": c.Name, "plan": c.Plan, "done": c.Done,
		"failed": c.Failed, "items": c.Items}
	if c.Failed > 0 {
		row["case"] = "failed"
	}
	return store.RunCompleted.Condition(f.began, row)
}

// told returns the conditions that a rule reports. A run change that it reports is not reported as health too.
func (s *Spec) told(rule *alert.Rule, all []seen) (told []seen) {
	for i := range all {
		if c := s.of(all[i]); s.tells(rule, &c) {
			told = append(told, c)
		}
	}
	return told
}

// of returns a condition as a rule reports it: as a run change if the rule has it, else as health.
func (s *Spec) of(c seen) seen {
	if !c.only && !slices.Contains(s.Runs, c.change) {
		c.change = ""
	}
	return c
}

// toldCompletion reports whether a condition is about failed items that the rule reported at the run's completion.
func (s *Spec) toldCompletion(rule *alert.Rule, c *seen) bool {
	_, err := uuid.Parse(c.Subject)
	return err == nil && c.Kind == store.FailedItems && slices.Contains(s.Runs, RunCompleted) &&
		!c.Since.Before(rule.Since)
}

func (s *Spec) tells(rule *alert.Rule, c *seen) bool {
	if c.muted || s.Unacknowledged && c.taken || !s.isAbout(c) {
		return false
	}
	if c.change != "" {
		return slices.Contains(s.Runs, c.change) && (!c.happened || !c.Since.Before(rule.From))
	}
	if c.Kind == store.AlertFailing && c.Subject == s.Name { // it could not deliver it, and would have one more to deliver
		return false
	}
	return s.Health != "" && c.Severity.Least(s.Health) && !s.toldCompletion(rule, c)
}

func (s *Spec) isAbout(c *seen) bool {
	if len(s.Namespaces) > 0 && !slices.Contains(s.Namespaces, c.namespace) {
		return false
	}
	return len(s.Plans)+len(s.Endpoints) == 0 || slices.Contains(s.Plans, c.plan) ||
		slices.ContainsFunc(c.of, func(e string) bool { return slices.Contains(s.Endpoints, e) })
}

// group is the group of conditions reported together: of its kind and, for runs, of its endpoint.
func (c *seen) group() string {
	group := string(c.Kind)
	if c.change != "" {
		group = "run_" + string(c.change)
	}
	if c.change == "" && c.plan != "" && len(c.of) == 1 {
		group += ":" + c.of[0]
	}
	return group
}

func (c *seen) kind() string {
	if c.change != "" {
		return runPrefix + string(c.change)
	}
	return string(c.Kind)
}

// kinds are the kinds under which the store may have a condition: as the rule reports it now, and as health, if the
// rule did not have the run change at that time.
func (s *Spec) kinds(c *seen) []string {
	told := s.of(*c)
	if c.only {
		return []string{told.kind()}
	}
	return []string{told.kind(), string(c.Kind)}
}

// holds returns a function that reports whether a condition holds, even if the rule does not report it. Run changes
// are known only if the rule has them.
func (s *Spec) holds(all []seen) func(kind, subject string) bool {
	var known map[[2]string]bool // built on demand, which is rare
	return func(kind, subject string) bool {
		if change, ofRun := strings.CutPrefix(kind, runPrefix); ofRun && !slices.Contains(s.Runs, RunChange(change)) {
			return true
		}
		if known == nil {
			known = make(map[[2]string]bool, len(all))
			for i := range all {
				for _, k := range s.kinds(&all[i]) {
					known[[2]string{k, all[i].key}] = true
				}
			}
		}
		return known[[2]string{kind, subject}]
	}
}

func (s *Spec) isMuted(all []seen) func(kind, subject string) bool {
	muted := map[[2]string]bool{}
	for i := range all {
		if c := &all[i]; c.muted {
			for _, k := range s.kinds(c) {
				muted[[2]string{k, c.key}] = true
			}
		}
	}
	return func(kind, subject string) bool { return muted[[2]string{kind, subject}] }
}

const runPrefix = "run:"

func noted(told []seen) ([]alert.Condition, error) {
	rows := make([]alert.Condition, 0, len(told))
	for i := range told {
		c := &told[i]
		said, err := json.Marshal(c.item())
		if err != nil {
			return nil, err
		}
		rows = append(rows, alert.Condition{Kind: c.kind(), Subject: c.key, Group: c.group(),
			Severity: string(c.Severity), Said: said, Happened: c.happened})
	}
	return rows, nil
}

func (c *seen) item() Item {
	of := Item{c.Condition, c.plan, c.namespace}
	of.Title, of.Detail = store.OneLine(c.Title, maxTitle), store.OneLine(c.Detail, maxDetail)
	of.Remedy, of.Mark = store.OneLine(c.Remedy, maxDetail), nil
	return of
}

func turn(c *store.Condition) string {
	switch c.Owner {
	case store.OwnerService:
		return "the service's: " + store.OneLine(c.Subject, maxTitle)
	case store.OwnerDatabase:
		return "the database administrator's"
	case store.OwnerServers:
		return "whoever runs the servers"
	case store.OwnerNobody:
		return "nobody's"
	default:
		return "an operator's"
	}
}
