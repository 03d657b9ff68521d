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
	"github.com/tranchehq/tranche/workqueue/control"
	storehealth "github.com/tranchehq/tranche/workqueue/health"
)

// seen is a condition, and what it is about.
type seen struct {
	health.Condition

	key      string // its subject, and what else tells it from others of its kind
	change   RunChange
	plan     string
	of       []string // endpoints
	happened bool
	aside    bool // somebody has put it aside: it holds, and is not told
}

// twin is by what a condition of health and what is told of a run are the same.
type twin struct {
	kind    health.Kind
	subject string
}

// facts is what a look has read.
type facts struct {
	began     time.Time // by the database's clock
	report    *health.Report
	runs      []alert.Run
	left      map[workqueue.RunID]time.Duration // of runs that will be late; 0: not known any more
	unknown   error                             // why an estimate could not be made
	completed []alert.Completion
	labels    map[workqueue.RunID]alert.Label
}

// all are the conditions that hold.
func (f *facts) all() (all []seen) {
	aside := map[twin]bool{}
	for _, c := range slices.Concat(f.report.Conditions, f.report.Aside) {
		s := seen{Condition: c, key: c.Subject, aside: c.Mark != nil && c.Mark.State == storehealth.Aside}
		aside[twin{c.Kind, c.Subject}] = s.aside
		if run, err := uuid.Parse(c.Subject); err == nil {
			label := f.labels[workqueue.RunID(run)]
			s.plan, s.of = label.Plan, label.Endpoints
		} else if aboutEndpoint(c.Kind) {
			s.of = []string{c.Subject}
		}
		all = append(all, s)
	}
	for i := range f.runs {
		for _, c := range f.ofRun(&f.runs[i]) {
			c.aside = aside[twin{c.Kind, c.Subject}]
			all = append(all, c)
		}
	}
	for i := range f.completed {
		c := &f.completed[i]
		all = append(all, seen{change: RunCompleted, key: c.Event, plan: c.Plan, of: c.Endpoints, happened: true,
			Condition: health.Completed(c)})
	}
	return all
}

func aboutEndpoint(k health.Kind) bool {
	return slices.Contains([]health.Kind{
		health.NoListeners, health.OldestWaiting, health.BreakerOpen, health.ServiceSlow, health.DeadLetters,
	}, k)
}

func (f *facts) ofRun(r *alert.Run) (all []seen) {
	add := func(change RunChange, c health.Condition) {
		all = append(all, seen{Condition: c, change: change, key: c.Subject, plan: r.Plan, of: r.Endpoints})
	}
	if r.Hold != "" && r.HeldAt != nil {
		change := RunPaused
		if r.Hold == string(control.HoldCanary) {
			change = RunWaits
		}
		add(change, health.Held(&storehealth.HeldRun{Run: r.ID, Name: r.Name, Plan: r.Plan, Hold: control.Hold(r.Hold),
			Detail: r.HoldDetail, Since: *r.HeldAt, By: r.HeldBy}))
	}
	if r.GateSince != nil {
		add(RunWaits, health.Held(&storehealth.HeldRun{Run: r.ID, Name: r.Name, Plan: r.Plan,
			Hold: storehealth.Gate, Detail: r.Gate, Since: *r.GateSince, By: r.NotBy}))
	}
	if r.SealBy != nil {
		add(RunOverdue, health.Unsealed(&storehealth.LateSeal{Run: r.ID, Name: r.Name, Plan: r.Plan, SealBy: *r.SealBy,
			Items: r.Items}, f.began))
	}
	if r.DoneBy == nil {
		return all
	}
	late := &storehealth.LateRun{Schedule: r.Schedule, Run: r.ID, Did: r.Late, DoneBy: *r.DoneBy}
	if r.Late != "" {
		add(RunOverdue, health.Late(late, f.began))
	}
	if left, known := f.left[r.ID]; known {
		add(RunWillMissTimes, health.WillBeLate(late, r.Name, r.Plan, f.began, left))
	}
	return all
}

// told are the conditions that a rule tells of. What it tells of a run by itself it does not tell as health once more.
func (s *Spec) told(rule *alert.Rule, all []seen) (told []seen) {
	runs := map[twin]bool{}
	for i := range all {
		if s.tells(rule, &all[i]) {
			told = append(told, all[i])
			if all[i].change != "" {
				runs[twin{all[i].Kind, all[i].Subject}] = true
			}
		}
	}
	return slices.DeleteFunc(told, func(c seen) bool {
		return c.change == "" && (runs[twin{c.Kind, c.Subject}] || s.toldCompletion(rule, &c))
	})
}

// toldCompletion reports whether a condition is about failed items that the rule told when their run completed.
func (s *Spec) toldCompletion(rule *alert.Rule, c *seen) bool {
	_, err := uuid.Parse(c.Subject)
	return err == nil && c.Kind == health.FailedItems && slices.Contains(s.Runs, RunCompleted) &&
		!c.Since.Before(rule.Since)
}

func (s *Spec) tells(rule *alert.Rule, c *seen) bool {
	if c.aside || !s.isAbout(c) {
		return false
	}
	if c.change != "" {
		return slices.Contains(s.Runs, c.change) && (!c.happened || !c.Since.Before(rule.From))
	}
	if c.Kind == health.AlertFailing && c.Subject == s.Name { // it could not tell it, and would have one more to tell
		return false
	}
	return s.Health != "" && c.Severity.Least(s.Health)
}

func (s *Spec) isAbout(c *seen) bool {
	return len(s.Plans)+len(s.Endpoints) == 0 || slices.Contains(s.Plans, c.plan) ||
		slices.ContainsFunc(c.of, func(e string) bool { return slices.Contains(s.Endpoints, e) })
}

// group is what a condition is told together with: others of its kind, and of runs those for the same endpoint.
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

// kind is the condition's in the store: what a rule tells of runs stands beside what it tells of health.
func (c *seen) kind() string {
	if c.change != "" {
		return runPrefix + string(c.change)
	}
	return string(c.Kind)
}

// holds returns what tells whether a condition holds, be it none that the rule tells of. Of runs it is known only for
// what it does tell.
func (s *Spec) holds(all []seen) func(kind, subject string) bool {
	var known map[[2]string]bool // made when it is asked for, which is seldom
	return func(kind, subject string) bool {
		if change, ofRun := strings.CutPrefix(kind, runPrefix); ofRun && !slices.Contains(s.Runs, RunChange(change)) {
			return true
		}
		if known == nil {
			known = make(map[[2]string]bool, len(all))
			for i := range all {
				known[[2]string{all[i].kind(), all[i].key}] = true
			}
		}
		return known[[2]string{kind, subject}]
	}
}

// putAside returns what tells whether somebody has put a condition aside.
func putAside(all []seen) func(kind, subject string) bool {
	aside := map[[2]string]bool{}
	for i := range all {
		if c := &all[i]; c.aside {
			aside[[2]string{c.kind(), c.key}] = true
		}
	}
	return func(kind, subject string) bool { return aside[[2]string{kind, subject}] }
}

// runPrefix stands before a change of runs that is a kind in the store.
const runPrefix = "run:"

// noted makes rows of conditions.
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
	return Item{
		Kind: string(c.Kind), Subject: c.Subject, Severity: c.Severity, Title: oneLine(c.Title, maxTitle),
		Detail: oneLine(c.Detail, maxDetail), Since: c.Since, Turn: oneLine(turn(c), maxTitle),
		Remedy: oneLine(c.Remedy, maxDetail), Link: c.Link, Plan: c.plan,
	}
}

// turn says whose turn it is.
func turn(c *seen) string {
	switch c.Kind {
	case health.NoListeners, health.BreakerOpen, health.ServiceSlow, health.DeadLetters, health.Quarantined,
		health.CollectorHangs:
		return "the service's: " + c.Subject
	case health.OldestWaiting:
		if len(c.of) > 0 {
			return "the service's: " + strings.Join(c.of, ", ")
		}
	case health.Database, health.DatabaseGap, health.Connections:
		return "the database administrator's"
	case health.NATS, health.StreamLimit, health.StreamSettings, health.Disk, health.Shortage, health.NodeDead,
		health.NodeLate, health.LeaderMissing, health.EventsWaiting, health.StaleSlices:
		return "whoever runs the servers"
	case health.RunCompleted:
		if c.Severity == health.Info {
			return "nobody's"
		}
	}
	return "an operator's"
}

// soonest are runs that are to end in time, those that should end first first.
func soonest(runs []alert.Run) (due []*alert.Run) {
	for i := range runs {
		if runs[i].DoneBy != nil {
			due = append(due, &runs[i])
		}
	}
	slices.SortFunc(due, func(a, b *alert.Run) int { return a.DoneBy.Compare(*b.DoneBy) })
	return due
}
