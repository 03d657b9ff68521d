package health

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/template"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/pace"
)

// Kind is in one word why items of a run ([MissingGroup]) or anything else ([Condition]) is stalled.
type Kind string

// Owner is who must act next.
type Owner string

// Owners.
const (
	OwnerService  Owner = "service" // an instance that listens on the endpoint
	OwnerNode     Owner = "node"    // a node, immediately or at its next search for work
	OwnerTimer    Owner = "timer"   // a time that must come
	OwnerOperator Owner = "operator"
	OwnerServers  Owner = "servers"  // a person who runs the servers
	OwnerDatabase Owner = "database" // a person who runs PostgreSQL
	OwnerNATS     Owner = "nats"     // the NATS servers, which have to find a quorum
	OwnerStep     Owner = "step"     // another step of the run, which other groups explain
	OwnerNobody   Owner = "nobody"   // nothing moves any more
)

// Severity is how much a condition matters.
type Severity string

// Severities.
const (
	Info     Severity = "info"     // good to know; may be intended
	Warning  Severity = "warning"  // needs an operator, but can wait
	Critical Severity = "critical" // work is stalled, or is about to be
)

// Least reports whether s is at least as severe as other.
func (s Severity) Least(other Severity) bool { return s.Weight() >= other.Weight() }

// Weight orders severities.
func (s Severity) Weight() int { return slices.Index([]Severity{Info, Warning, Critical}, s) }

// Condition is a state that an operator should know of or fix.
type Condition struct {
	Kind     Kind      `json:"kind" doc:"in one word, like failed_items or no_listeners; new ones may come"`
	Severity Severity  `json:"severity" enum:"info,warning,critical"`
	Subject  string    `json:"subject" doc:"of what: the id of a run, the name of an endpoint, a node, a stream, a host"`
	Owner    Owner     `json:"owner" enum:"service,node,operator,servers,database,nobody" doc:"what it waits on"`
	Title    string    `json:"title"`
	Detail   string    `json:"detail"`
	Since    time.Time `json:"since"`
	Remedy   string    `json:"remedy" doc:"the remedy; commands are in backquotes"`
	Link     string    `json:"link,omitempty" doc:"path of the dashboard's page about it"`
	Count    int64     `json:"count" doc:"how many items, dead letters, messages or operations it is about, or 1"`
	Of       int64     `json:"of" doc:"how many runs, endpoints and so on it represents, mostly 1"`
	Resets   bool      `json:"resets,omitempty" doc:"a step must be reset, as remedy says: a rerun would fail again"`
	Mark     *Mark     `json:"mark,omitempty" doc:"how operators marked it; absent: not marked"`

	Undated bool `json:"-"` // nothing in the database dates it: its first sight must be kept
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

// Stops is what the condition stops.
func (c *Condition) Stops() Reach {
	if c.Kind == NATS && c.Subject != JetStream { // only one node
		return StopsNothing
	}
	return c.Kind.Rule().Stops
}

// Rule is one reason for a stall, with all words about it that hold for every case. Readers select it by its fields.
type Rule struct {
	Kind     Kind
	Owner    Owner    // who must act; a group may override it
	Severity Severity // empty: Warning
	Waits    bool     // it becomes critical after waitsLong times Limits.Waiting

	// Items says in a few words what items wait for, with {to} for the target; empty: never. Normal: also if all is well.
	Items  string
	Normal bool
	Behind bool // they wait for requests in flight to end

	// Who, Why, Next and Advice are templates that explain items at length. Advice that renders empty is left out.
	Who, Why, Next string
	Advice         []Advice

	// Title, Detail, Remedy and Link are templates over a condition's [Row]. Remedy defaults to the advice, Link to
	// the page of the run or endpoint. Cases override them, by the row's column `case`.
	Title, Detail, Remedy, Link string
	Cases                       map[string]Rule

	// Name, Of and Counts are the kind's name, subject and unit of counting. Many is what alerts say of several.
	Name, Of, Counts, Many string

	Stops  Reach
	Change string // its name in rules of alerts about runs
	With   Kind   // it is read by that kind's statement
	Most   int64  // bound of the count; 0: none

	find string // the statement whose rows are its conditions; empty: servers see it themselves
	args []any
}

// Rule returns the rule of a kind, or one with only the kind if none exists.
func (k Kind) Rule() Rule {
	at := slices.IndexFunc(rules, func(r Rule) bool { return r.Kind == k })
	if at < 0 {
		return Rule{Kind: k}
	}
	return rules[at]
}

// Words returns a kind's name, what its conditions are about, and what they count.
func (k Kind) Words() (title, of, counted string) {
	if r := k.Rule(); r.Name != "" {
		return r.Name, r.Of, r.Counts
	}
	name := strings.ReplaceAll(string(k), "_", " ")
	return strings.ToUpper(name[:1]) + name[1:], "condition", ""
}

// Amiss reports whether items wait for it only when something is wrong, and nothing is in progress for them.
func (k Kind) Amiss() bool { return !k.Rule().Normal }

// in is the rule with the overrides of one of its cases.
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

// Advice is the remedy of a case, for kinds whose remedy is the same everywhere.
func (k Kind) Advice(name string) Advice {
	remedy := k.Rule().in(name).Remedy
	return Advice{Do: strings.ToLower(remedy[:1]) + remedy[1:]}
}

// Say explains items by the rule of a kind, whose templates may use row and the group's fields. It clears When.
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

func (r *Rule) advice(say func(string) string) (all []Advice) {
	for _, a := range r.Advice {
		if a = (Advice{say(a.Do), say(a.Command)}); a.Do != "" {
			all = append(all, a)
		}
	}
	return all
}

// Warn says in a line why a run, a step or the items for an endpoint wait, and what helps.
func (k Kind) Warn(run workqueue.RunID, step, endpoint string, row Row) string {
	g := MissingGroup{run: run, Step: step, Endpoint: endpoint}
	g.Say(k, row)
	return g.Why + "; " + advised(g.Advice)
}

func advised(all []Advice) string {
	parts := make([]string, len(all))
	for i, a := range all {
		if parts[i] = a.Do; a.Command != "" {
			parts[i] += ": `" + a.Command + "`"
		}
	}
	return strings.Join(parts, "; ")
}

// AdviceFor is the kind's first advice for the items of a group.
func (k Kind) AdviceFor(g *MissingGroup) Advice {
	other := MissingGroup{run: g.run, Endpoint: g.Endpoint}
	other.Say(k, nil)
	return other.Advice[0]
}

// Links of runs and endpoints.
const (
	runLink      = "/runs/{{.subject}}"
	endpointLink = "/endpoint?name={{urlquery .subject}}"
)

// Row is what is known of one condition, by name: a row of its rule's statement, or what a server sees itself. It
// has a subject, and may have count, of, severity and case. Without since, the condition dates from its first sight.
type Row map[string]any

func (r Row) text(name string) string {
	text, _ := r[name].(string)
	return text
}

func (r Row) number(name string) int64 {
	n, _ := r[name].(int64)
	return max(n, 1)
}

// Condition formats a row as a condition; at is the database's clock.
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
		fix = advised(r.advice(say))
		fix = strings.ToUpper(fix[:min(len(fix), 1)]) + fix[min(len(fix), 1):]
	}
	return Condition{Kind: k, Severity: severity, Subject: row.text("subject"), Owner: r.Owner, Title: say(r.Title),
		Detail: say(r.Detail), Since: since, Remedy: fix, Link: say(r.Link), Count: row.number("count"),
		Of: row.number("of"), Resets: row["bad"] != nil, Undated: !dated || row["undated"] != nil}
}

// sayer renders a rule's templates. A template's error, which is a bug, becomes the text.
func sayer(at time.Time, row Row) func(text string) string {
	words := template.FuncMap{
		"ago":    func(t time.Time) string { return Ago(at.Sub(t)) },
		"until":  func(t time.Time) string { return Ago(t.Sub(at)) },
		"lasts":  func(seconds float64) string { return Ago(time.Duration(seconds * float64(time.Second))) },
		"second": func(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.0 MST") },
		"clock":  clock, "quote": ShellWord, "grouped": control.Grouped,
		"moment": Moment, "count": countOf, "are": thereAre, "run": runName, "uses": uses, "logs": logsOf,
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

// texts caches the parsed templates of rules, a few hundred.
var texts sync.Map //nolint:gochecknoglobals // ten thousand conditions have the texts of a few rules

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

const maxQuoted = 300

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

type found struct {
	kind Kind
	row  Row
}

// queue adds a rule's statement. Its rows may set the kind, and how many of the kind are known.
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

// waitsLong is the multiple of Limits.Waiting after which a condition that Waits is critical.
const waitsLong = 6

func (f *Facts) say() {
	for _, one := range f.rows {
		c := one.kind.Condition(f.At, one.row)
		if one.kind.Rule().Waits && one.row["severity"] == nil && f.At.Sub(c.Since) > waitsLong*f.limits.Waiting {
			c.Severity = Critical
		}
		f.Conditions = append(f.Conditions, c)
	}
}

func (f *Facts) cut(kind Kind) {
	for i := range rules {
		if rules[i].Kind == kind || rules[i].With == kind {
			f.Cut = append(f.Cut, rules[i].Kind)
		}
	}
}

// Count formats a number with its noun: 1 item, 2,500 items.
func Count[N ~int | ~int64 | ~uint64](n N, noun string) string {
	return control.Grouped(int64(n)) + " " + noun + either(n == 1, "", "s")
}

func countOf(n any, noun string) string {
	number, err := strconv.ParseInt(fmt.Sprint(n), 10, 64) // of the several types that rows have
	if err != nil {
		return fmt.Sprint(n, " ", noun, "s")
	}
	return Count(number, noun)
}

func thereAre(n any, noun string) string {
	if fmt.Sprint(n) == "0" {
		return "no " + noun + " is"
	}
	return countOf(n, noun) + either(fmt.Sprint(n) == "1", " is", " are")
}

func either(is bool, this, that string) string {
	if is {
		return this
	}
	return that
}

func uses(runs any) string {
	if fmt.Sprint(runs) == "0" {
		return "No running run uses"
	}
	return countOf(runs, "running run") + either(fmt.Sprint(runs) == "1", " uses", " use")
}

func runName(r Row) string {
	if name := r.text("name"); name != "" {
		return "run " + name
	}
	return fmt.Sprintf("run %.8s of %s", r.text("subject"), r.text("plan"))
}

func logsOf(endpoint string) string {
	switch kind, of := workqueue.TargetKind(endpoint); kind {
	case workqueue.KindHTTP:
		return "Ask who runs " + of
	case workqueue.KindSQL:
		return "Check what the database of source " + of + " does"
	default:
		return "Find its instances, and check their logs"
	}
}

// Ago formats a duration in human-readable form.
func Ago(d time.Duration) string {
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(max(d, 0).Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", int(d.Hours()))
	default:
		return fmt.Sprintf("%d days", int(d.Hours()/24))
	}
}

// Moment formats a time to the minute.
func Moment(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 MST") }

// OneLine makes foreign text, like a run's name, safe in a line: without breaks, invisible or bidi characters.
func OneLine(text string, most int) string {
	return Clip(strings.Map(func(r rune) rune {
		switch {
		case unicode.IsControl(r), unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, text), most)
}

// Clip cuts a text to at most that many characters.
func Clip(text string, most int) string {
	if len(text) <= most {
		return text
	}
	runes := []rune(strings.ToValidUTF8(text, "\uFFFD"))
	if len(runes) <= most {
		return string(runes)
	}
	return string(runes[:most-1]) + "…"
}
