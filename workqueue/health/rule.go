package health

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"sync"
	"text/template"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/pace"
)

// Kind says in one word why something stands: items of a run ([MissingGroup]), or anything else ([Condition]).
type Kind string

// Owner says whose turn it is.
type Owner string

// Owners.
const (
	OwnerService  Owner = "service"  // an instance that listens on the endpoint
	OwnerNode     Owner = "node"     // a node, immediately or with its next look
	OwnerTimer    Owner = "timer"    // a time that has to come
	OwnerOperator Owner = "operator" // a person
	OwnerServers  Owner = "servers"  // a person who runs the servers
	OwnerDatabase Owner = "database" // a person who runs PostgreSQL
	OwnerNATS     Owner = "nats"     // the NATS servers, which have to find a quorum
	OwnerStep     Owner = "step"     // another step of the run, of which other groups tell
	OwnerNobody   Owner = "nobody"   // nothing moves any more
)

// Severity says how much a condition matters.
type Severity string

// Severities.
const (
	Info     Severity = "info"     // good to know; someone may have wanted it so
	Warning  Severity = "warning"  // needs an operator, but can wait
	Critical Severity = "critical" // work is stalled, or is about to be
)

// Least reports whether a severity is another one at least.
func (s Severity) Least(other Severity) bool { return s.Weight() >= other.Weight() }

// Weight orders severities.
func (s Severity) Weight() int { return slices.Index([]Severity{Info, Warning, Critical}, s) }

// Condition is something that a person should see to.
type Condition struct {
	Kind     Kind      `json:"kind" doc:"in one word, like failed_items or no_listeners; new ones may come"`
	Severity Severity  `json:"severity" enum:"info,warning,critical"`
	Subject  string    `json:"subject" doc:"of what: the id of a run, the name of an endpoint, a node, a stream, a host"`
	Owner    Owner     `json:"owner" enum:"service,node,operator,servers,database,nobody" doc:"what it waits on"`
	Title    string    `json:"title"`
	Detail   string    `json:"detail"`
	Since    time.Time `json:"since"`
	Remedy   string    `json:"remedy" doc:"what helps; commands stand between backquotes"`
	Link     string    `json:"link,omitempty" doc:"path of the dashboard's page about it"`
	Count    int64     `json:"count" doc:"how many items, dead letters, messages or operations it is about, or 1"`
	Of       int64     `json:"of" doc:"how many runs, endpoints and so on it stands for, mostly 1"`
	Resets   bool      `json:"resets,omitempty" doc:"a step must be reset, as remedy says: a re-run would fail again"`
	Mark     *Mark     `json:"mark,omitempty" doc:"how operators marked it; absent: not marked"`

	Undated bool `json:"-"` // nothing in the database tells since when it is so: that must be kept
}

// Key names it.
func (c *Condition) Key() ConditionKey { return ConditionKey{string(c.Kind), c.Subject} }

// Reach is what a condition stops.
type Reach int

// Reaches.
const (
	StopsNothing Reach = iota
	StopsRun
	StopsEndpoint // or one run
	StopsAll
)

// Stops is what a condition stops.
func (c *Condition) Stops() Reach {
	if c.Kind == NATS && c.Subject != JetStream { // one node's
		return StopsNothing
	}
	return c.Kind.Rule().Stops
}

// Rule is one reason why something stands, with all that is said of it anywhere but for what is particular about one
// case. `run explain`, the health, alerts and the list of runs select from the rules by their fields.
type Rule struct {
	Kind     Kind
	Owner    Owner    // whose turn it is; of items each group says it
	Severity Severity // empty: Warning
	Waits    bool     // it is critical after some times Limits.Waiting

	// Items is what items say that wait for it, in a few words, with {to} for what they are for; Normal that they wait
	// for it although all is well. Empty: items do not wait for it.
	Items  string
	Normal bool
	Behind bool // they wait for requests that are out to end

	// Who, Why, Next and Advice say it at length of items: templates, too. An advice is left out that comes to nothing.
	Who, Why, Next string
	Advice         []Advice

	// Title, Detail, Remedy and Link word a condition: templates over its [Row]. Without a Remedy it says the advice;
	// without a Link it leads to the page of its run or endpoint. Cases are what is different in some cases, by the
	// row's column of that name.
	Title, Detail, Remedy, Link string
	Cases                       map[string]Rule

	// Name, Of and Counts are of all its conditions: what they are called, what they are about and what they count.
	// Many is what alerts say of several.
	Name, Of, Counts, Many string

	Stops  Reach
	Change string // what rules of alerts call it, of runs
	With   Kind   // it is read with that one
	Most   int64  // so many are counted at most; 0: all

	find string // the statement whose rows are its conditions; empty: servers see it themselves
	args []any
}

// Rule returns the rule of a kind; the zero Rule but for the kind when there is none.
func (k Kind) Rule() Rule {
	at := slices.IndexFunc(rules, func(r Rule) bool { return r.Kind == k })
	if at < 0 {
		return Rule{Kind: k}
	}
	return rules[at]
}

// Words are what conditions of a kind are called, what they are about, and what they count.
func (k Kind) Words() (title, of, counted string) {
	if r := k.Rule(); r.Name != "" {
		return r.Name, r.Of, r.Counts
	}
	name := strings.ReplaceAll(string(k), "_", " ")
	return strings.ToUpper(name[:1]) + name[1:], "condition", ""
}

// Amiss reports whether items would not wait for it if all were well: no service is at work on them, no node is about
// to send them, and it is not their turn yet that they wait for.
func (k Kind) Amiss() bool { return !k.Rule().Normal }

// in is the rule as it is in one of its cases.
func (r Rule) in(name string) Rule {
	of := r.Cases[name]
	r.Title, r.Detail, r.Remedy = cmp.Or(of.Title, r.Title), cmp.Or(of.Detail, r.Detail), cmp.Or(of.Remedy, r.Remedy)
	r.Owner, r.Severity, r.Link = cmp.Or(of.Owner, r.Owner), cmp.Or(of.Severity, r.Severity), cmp.Or(of.Link, r.Link)
	r.Who, r.Why, r.Next = cmp.Or(of.Who, r.Who), cmp.Or(of.Why, r.Why), cmp.Or(of.Next, r.Next)
	if of.Advice != nil {
		r.Advice = of.Advice
	}
	if byRule := map[string]string{"run": runLink, "endpoint": endpointLink}[r.Of]; r.Link == "" {
		r.Link = byRule
	}
	return r
}

// Advice is what helps in a case of a kind that is helped alike wherever it is seen.
func (k Kind) Advice(name string) Advice {
	remedy := k.Rule().in(name).Remedy
	return Advice{Do: strings.ToLower(remedy[:1]) + remedy[1:]}
}

// Say explains items by the rule of a kind: the words name what row has, what the group is about (run, step, endpoint,
// target, who serves it) and no more. When it is over is for the caller to add.
func (g *MissingGroup) Say(k Kind, row Row) {
	all := Row{"run": g.run.String(), "step": g.Step, "endpoint": g.Endpoint,
		"target": workqueue.TargetText(g.Endpoint), "servers": servers(g.Endpoint)}
	maps.Copy(all, row)
	r, say := k.Rule().in(row.text("case")), sayer(time.Time{}, all)
	g.Reason, g.Owner, g.Who, g.Why, g.Next = k, cmp.Or(Owner(row.text("owner")), r.Owner), say(r.Who), say(r.Why),
		say(r.Next)
	g.When = nil
	g.Advice = r.advice(say)
}

// advice is what helps in one case, filled in.
func (r *Rule) advice(say func(string) string) (all []Advice) {
	for _, a := range r.Advice {
		if a = (Advice{say(a.Do), say(a.Command)}); a.Do != "" {
			all = append(all, a)
		}
	}
	return all
}

// remedy is advice in a sentence.
func remedy(all []Advice) string {
	parts := make([]string, len(all))
	for i, a := range all {
		if parts[i] = a.Do; a.Command != "" {
			parts[i] += ": `" + a.Command + "`"
		}
	}
	text := strings.Join(parts, "; ")
	return strings.ToUpper(text[:min(len(text), 1)]) + text[min(len(text), 1):]
}

// AdviceFor is the first that helps items of a group for which a kind is the reason.
func (k Kind) AdviceFor(g *MissingGroup) Advice {
	other := MissingGroup{run: g.run, Endpoint: g.Endpoint}
	other.Say(k, nil)
	return other.Advice[0]
}

// Links of what runs and endpoints are about.
const (
	runLink      = "/runs/{{.subject}}"
	endpointLink = "/endpoint?name={{urlquery .subject}}"
)

// Row is what is known of one condition, by name: a row of its rule's statement, or what a server sees itself. It has a
// subject; without since, it has been so since it was first seen. It may have count, of, severity and case.
type Row map[string]any

func (r Row) text(name string) string {
	text, _ := r[name].(string)
	return text
}

// number is a count of the row's, or 1.
func (r Row) number(name string) int64 {
	n, _ := r[name].(int64)
	return max(n, 1)
}

// Condition words what is known of one, by the database's clock.
func (k Kind) Condition(at time.Time, row Row) Condition {
	r := k.Rule().in(row.text("case"))
	severity := cmp.Or(Severity(row.text("severity")), r.Severity, Warning)
	since, dated := row["since"].(time.Time)
	if r.Of == "run" || r.Of == "endpoint" {
		row[r.Of] = row["subject"] // as advice names it
	}
	say := sayer(at, row)
	fix := say(r.Remedy)
	if fix == "" {
		fix = remedy(r.advice(say))
	}
	return Condition{Kind: k, Severity: severity, Subject: row.text("subject"), Owner: r.Owner, Title: say(r.Title),
		Detail: say(r.Detail), Since: since, Remedy: fix, Link: say(r.Link), Count: row.number("count"),
		Of: row.number("of"), Resets: row["bad"] != nil, Undated: !dated || row["undated"] != nil}
}

// sayer returns what fills the templates of a rule. What is wrong with one, which is a fault of ours, stands in its
// place: the condition is told anyway.
func sayer(at time.Time, row Row) func(text string) string {
	words := template.FuncMap{
		"ago":    func(t time.Time) string { return Ago(at.Sub(t)) },
		"until":  func(t time.Time) string { return Ago(t.Sub(at)) },
		"lasts":  func(seconds float64) string { return Ago(time.Duration(seconds * float64(time.Second))) },
		"second": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.0 MST") },
		"clock":  clock, "quote": shellQuote, "items": manyItems, "grouped": control.Grouped,
		"moment": moment, "count": countOf, "are": thereAre, "run": runName, "uses": uses, "logs": logsOf,
		"line": func(text string) string { return OneLine(text, maxQuoted) },
		"slow": func(endpoint string, before, now float64) string {
			return (&pace.SlowEndpoint{Endpoint: endpoint, Before: before, Now: now}).String()
		},
	}
	return func(text string) string {
		if !strings.Contains(text, "{{") {
			return text
		}
		var b strings.Builder
		t, err := parsed(text, words)
		if err == nil {
			err = t.Execute(&b, row)
		}
		if err != nil {
			return err.Error()
		}
		return b.String()
	}
}

// texts are those of rules that were parsed, of which there are a few hundred.
var texts sync.Map //nolint:gochecknoglobals // ten thousand conditions have the texts of a few rules

// parsed is a text with its words, which know the time.
func parsed(text string, words template.FuncMap) (*template.Template, error) {
	if known, ok := texts.Load(text); ok {
		t, err := known.(*template.Template).Clone() //nolint:forcetypeassert // nothing else is stored
		if err != nil {
			return nil, err
		}
		return t.Funcs(words), nil
	}
	t, err := template.New("").Funcs(words).Parse(text)
	if err != nil {
		return nil, err
	}
	texts.Store(text, t)
	return t.Clone()
}

// maxQuoted bounds what is quoted of a server.
const maxQuoted = 300

// limit stands among the arguments of a statement for one of the Limits.
type limit int

const (
	waiting limit = iota
	listed
)

func (l *Limits) args(args []any) []any {
	args = slices.Clone(args)
	for i, arg := range args {
		switch arg {
		case waiting:
			args[i] = l.Waiting
		case listed:
			args[i] = l.Listed
		}
	}
	return args
}

// found is a condition that is still to be worded.
type found struct {
	kind Kind
	row  Row
}

// queue adds the statement of a rule. Rows may say which kind they are of, and how many of it are known.
func (f *Facts) queue(b *pgx.Batch, r *Rule) {
	if r.find == "" {
		return
	}
	b.Queue(r.find, f.limits.args(r.args)...).Query(func(rows pgx.Rows) error {
		read, err := pgx.CollectRows(rows, pgx.RowToMap)
		counted := int64(0)
		for _, row := range read {
			one := found{cmp.Or(Kind(Row(row).text("kind")), r.Kind), row}
			counted += one.row.number("count")
			f.rows = append(f.rows, one)
			if known, told := row["known"].(int64); told {
				if _, before := f.More[one.kind]; !before {
					f.More[one.kind] = known
				}
				f.More[one.kind]--
			}
		}
		if slices.Contains(r.args, any(listed)) && len(read) >= f.limits.Listed || r.Most > 0 && counted >= r.Most {
			f.cut(r.Kind)
		}
		return err
	})
}

// waitsLong is how many times Limits.Waiting it is critical after.
const waitsLong = 6

// say words what was found.
func (f *Facts) say() {
	for _, one := range f.rows {
		c := one.kind.Condition(f.At, one.row)
		if one.kind.Rule().Waits && one.row["severity"] == nil && f.At.Sub(c.Since) > waitsLong*f.limits.Waiting {
			c.Severity = Critical
		}
		f.Conditions = append(f.Conditions, c)
	}
}

// cut notes that there may be more conditions of a kind, and of those read with it.
func (f *Facts) cut(kind Kind) {
	for i := range rules {
		if rules[i].Kind == kind || rules[i].With == kind {
			f.Cut = append(f.Cut, rules[i].Kind)
		}
	}
}
