package alerts

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/alert"
	store "github.com/tranchehq/tranche/workqueue/health"
)

// Limits on messages.
const (
	maxTitle  = 200 // characters
	maxDetail = 500
	maxText   = 6000
	maxShown  = 8 // conditions in the text; the JSON of webhooks and commands has alert.MaxListed
)

// Item is a condition of a message, its texts bounded.
type Item struct {
	store.Condition

	Plan      string `json:"plan,omitempty"`
	Namespace string `json:"namespace,omitempty"`
}

// Message is what a receiver gets, the same for each attempt.
type Message struct {
	ID       string         `json:"id"`
	Alert    string         `json:"alert"`  // the rule
	Group    string         `json:"group"`  // the same for related messages
	Status   string         `json:"status"` // begun, worse, over or test
	Severity store.Severity `json:"severity"`
	At       time.Time      `json:"at"`
	Title    string         `json:"title"`
	Begun    []Item         `json:"begun,omitempty"` // also worse ones; the first of them
	BegunAll int64          `json:"begun_count"`
	Over     []Item         `json:"over,omitempty"`
	OverAll  int64          `json:"over_count"`
	Holding  int64          `json:"holding"` // current conditions of the group, these included

	Text string `json:"text,omitempty"` // human-readable; made when sent
	Link string `json:"link,omitempty"`
}

// compose makes a message per changed group. now are the current conditions.
func compose(rule string, at time.Time, listed []alert.Listed, now []seen) (messages []alert.Message, err error) {
	current := map[[2]string]*seen{}
	for i := range now {
		k := [2]string{now[i].kind(), now[i].key}
		if c := current[k]; c == nil || !c.Severity.Least(now[i].Severity) { // the worse of two
			current[k] = &now[i]
		}
	}
	for len(listed) > 0 {
		n := slices.IndexFunc(listed, func(l alert.Listed) bool { return l.Group != listed[0].Group })
		if n < 0 {
			n = len(listed)
		}
		m, err := composeGroup(rule, at, listed[:n], current)
		if err != nil {
			return nil, err
		}
		messages, listed = append(messages, m), listed[n:]
	}
	return messages, nil
}

func composeGroup(
	rule string, at time.Time, listed []alert.Listed, current map[[2]string]*seen,
) (out alert.Message, err error) {
	id := uuid.Must(uuid.NewV7())
	m := Message{ID: id.String(), Alert: rule, Group: listed[0].Group, At: at, Severity: store.Info,
		Status: string(alert.ChangeOver), Holding: listed[0].Holds}
	counted := map[alert.Change]int64{}
	for i := range listed {
		l := &listed[i]
		item := Item{}
		if err := json.Unmarshal(l.Said, &item); err != nil {
			return out, fmt.Errorf("read what was said of %s %s: %w", l.Kind, l.Subject, err)
		}
		if c := current[[2]string{l.Kind, l.Subject}]; c != nil { // in its current words
			item = c.item()
		}
		if severity := store.Severity(l.Severity); severity.Least(m.Severity) {
			m.Severity = severity
		}
		counted[l.Change] = l.Count
		if l.Change == alert.ChangeOver {
			m.Over = append(m.Over, item)
			continue
		}
		m.Begun = append(m.Begun, item)
		if m.Status != string(alert.ChangeBegun) {
			m.Status = string(l.Change)
		}
	}
	m.BegunAll = counted[alert.ChangeBegun] + counted[alert.ChangeWorse]
	m.OverAll = counted[alert.ChangeOver]
	m.Title = m.title()
	body, err := json.Marshal(m)
	return alert.Message{ID: id, Group: m.Group, Severity: string(m.Severity), Body: body}, err
}

func (m *Message) title() string {
	if m.BegunAll == 0 {
		return store.Clip("Over: "+several(m.Group, m.OverAll, m.Over[0].Title), maxTitle)
	}
	title := several(m.Group, m.BegunAll, m.Begun[0].Title)
	if m.Holding > m.BegunAll {
		title += fmt.Sprintf(" (%d in all)", m.Holding)
	}
	return store.Clip(title, maxTitle)
}

func several(group string, n int64, first string) string {
	if n == 1 {
		return first
	}
	kind, endpoint, _ := strings.Cut(group, ":")
	words := map[string]string{
		"run_" + string(RunCompleted): "runs have completed", "run_" + string(RunPaused): "runs are paused",
		"run_" + string(RunWaits): "runs wait for an approval", "run_" + string(RunOverdue): "runs are overdue",
		"run_" + string(RunAtRisk): "runs will miss their time",
	}[kind]
	if words = cmp.Or(words, store.Kind(kind).Rule().Many); words != "" {
		return fmt.Sprintf("%d %s%s", n, words, prefixed(" for endpoint ", store.OneLine(endpoint, maxTitle)))
	}
	if kind == string(store.OldestWaiting) && endpoint != "" {
		return fmt.Sprintf("%d runs wait for endpoint %s", n, store.OneLine(endpoint, maxTitle))
	}
	return fmt.Sprintf("%s, and %d more like it", first, n-1)
}

func prefixed(with, text string) string {
	if text == "" {
		return ""
	}
	return with + text
}

// TestMessage returns the message of a rule's test.
func TestMessage(rule string, at time.Time) (json.RawMessage, error) {
	return json.Marshal(Message{Alert: rule, Group: "test", Status: "test", Severity: store.Info, At: at,
		Title: "A test of the alert " + rule, Begun: []Item{{
			Condition: store.Condition{Kind: "test", Subject: rule, Severity: store.Info, Title: "This is a test", Since: at,
				Count: 1, Of: 1, Owner: store.OwnerNobody, Detail: "Someone wanted to see whether messages of this alert arrive.",
				Remedy: "Nothing: it does", Link: "/alerts?name=" + url.QueryEscape(rule)},
		}}, BegunAll: 1})
}

// read decodes a stored message and adds the text, with links if public is set.
func read(a *alert.Attempt, public string) (*Message, error) {
	m := &Message{}
	if err := json.Unmarshal(a.Body, m); err != nil {
		return nil, fmt.Errorf("read message %s: %w", a.Message, err)
	}
	m.ID = a.Message.String() // also for a test
	for _, items := range [][]Item{m.Begun, m.Over} {
		for i := range items {
			items[i].Link = linkTo(public, items[i].Link)
		}
	}
	m.Link = linkTo(public, "/health")
	if all := append(slices.Clip(m.Begun), m.Over...); len(all) == 1 {
		m.Link = cmp.Or(all[0].Link, m.Link)
	} else if strings.HasPrefix(m.Group, "run_") {
		m.Link = linkTo(public, "/runs")
	}
	m.Text = m.text()
	return m, nil
}

func linkTo(public, path string) string {
	if public == "" || path == "" {
		return ""
	}
	return strings.TrimSuffix(public, "/") + path
}

// text describes each condition: what, why, since when, who must act and what helps.
func (m *Message) text() string {
	var b strings.Builder
	shown := int64(0)
	for _, item := range m.Begun[:min(len(m.Begun), maxShown)] {
		if b.Len() > maxText/2 { // the rest needs room too
			break
		}
		if shown++; shown > 1 {
			b.WriteByte('\n')
		}
		fmt.Fprintf(&b, "%s (%s)\n", item.Title, item.Severity)
		if item.Detail != "" {
			fmt.Fprintln(&b, item.Detail)
		}
		fmt.Fprintf(&b, "Since %s. Waiting on: %s.\nTo do: %s.\n", store.Moment(item.Since), turn(&item.Condition),
			strings.TrimSuffix(item.Remedy, "."))
		if item.Link != "" {
			fmt.Fprintf(&b, "%s\n", item.Link)
		}
	}
	if more := m.BegunAll - shown; more > 0 {
		fmt.Fprintf(&b, "\nAnd %d more like these.%s\n", more, prefixed(" ", m.Link))
	}
	if m.OverAll > 0 {
		b.WriteString("\nOver:\n")
		for _, item := range m.Over[:min(len(m.Over), maxShown)] {
			fmt.Fprintf(&b, "- %s (since %s)\n", item.Title, store.Moment(item.Since))
		}
		if more := m.OverAll - int64(min(len(m.Over), maxShown)); more > 0 {
			fmt.Fprintf(&b, "- and %d more\n", more)
		}
		if m.Holding > 0 {
			fmt.Fprintf(&b, "%d like it hold still.\n", m.Holding)
		}
	}
	return store.Clip(strings.TrimLeft(b.String(), "\n"), maxText)
}

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
		if c := &all[i]; c.muted || s.Unacknowledged && c.taken {
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
		return "the server operator's"
	case store.OwnerNobody:
		return "no one's"
	default:
		return "an operator's"
	}
}
