package health

import (
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
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
	Warning  Severity = "warning"  // someone has to see to it, and it can wait
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
	Owner    Owner     `json:"owner" enum:"service,node,operator,servers,database,nobody" doc:"whose turn it is"`
	Title    string    `json:"title"`
	Detail   string    `json:"detail"`
	Since    time.Time `json:"since"`
	Remedy   string    `json:"remedy" doc:"what helps; commands stand between backquotes"`
	Link     string    `json:"link,omitempty" doc:"path of the dashboard's page about it"`
	Count    int64     `json:"count" doc:"how many items, dead letters, messages or operations it is about, or 1"`
	Of       int64     `json:"of" doc:"how many runs, endpoints and so on it stands for, mostly 1"`
	Resets   bool      `json:"resets,omitempty" doc:"a step must be reset, as remedy says: a re-run would fail again"`
	Mark     *Mark     `json:"mark,omitempty" doc:"what someone said of it; absent: nothing"`

	Undated bool `json:"-"` // nothing in the database tells since when it is so: that must be kept
}

// Key names it.
func (c *Condition) Key() ConditionKey { return ConditionKey{string(c.Kind), c.Subject} }

// Filled returns a condition with what its rule says of all of its kind.
func (c Condition) Filled() Condition {
	rule := c.Kind.Rule()
	if c.Severity == "" {
		c.Severity = Warning
	}
	if c.Owner == "" {
		c.Owner = rule.Owner
	}
	switch {
	case c.Link != "":
	case rule.Link != "":
		c.Link = rule.Link
	case rule.Of == "run":
		c.Link = runLink(c.Subject)
	case rule.Of == "endpoint":
		c.Link = endpointLink(c.Subject)
	}
	c.Of, c.Count = max(c.Of, 1), max(c.Count, 1)
	return c
}

func runLink(id string) string { return "/runs/" + id }

func endpointLink(name string) string { return "/endpoint?name=" + url.QueryEscape(name) }

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
	Kind  Kind
	Owner Owner // whose turn it is; of items each group says it

	// Items is what items say that wait for it, in a few words, with {to} for what they are for; Normal that they wait
	// for it although all is well. Empty: items do not wait for it.
	Items  string
	Normal bool

	// Title, Of and Counts are of all its conditions: what they are called, what they are about and what they count.
	// Many is what alerts say of several. Link is the page about it, if it is neither a run's nor an endpoint's.
	Title, Of, Counts, Many, Link string

	Stops  Reach
	Change string // what rules of alerts call it, of runs
	With   Kind   // it is read with that one
	Most   int64  // so many are counted at most; 0: all

	find query // what reads it from the database; nil: servers see it themselves
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
	if r := k.Rule(); r.Title != "" {
		return r.Title, r.Of, r.Counts
	}
	name := strings.ReplaceAll(string(k), "_", " ")
	return strings.ToUpper(name[:1]) + name[1:], "condition", ""
}

// Amiss reports whether items would not wait for it if all were well: no service is at work on them, no node is about
// to send them, and it is not their turn yet that they wait for.
func (k Kind) Amiss() bool { return !k.Rule().Normal }

// query is a statement, and what is said of its rows.
type query struct {
	sql  string
	args []any
	read func(rows pgx.Rows) (say func(*Facts) []Condition, n int, err error)
}

// limit stands among the arguments of a query for one of the Limits.
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

// each makes a condition of each row of a statement.
func each[T any](sql string, args []any, say func(f *Facts, row *T) Condition) query {
	return all(sql, args, func(f *Facts, rows []T) (found []Condition) {
		for i := range rows {
			found = append(found, say(f, &rows[i]))
		}
		return found
	})
}

// all makes conditions of all rows of a statement. There may be more of them when it has as many rows as it may have.
func all[T any](sql string, args []any, say func(f *Facts, rows []T) []Condition) query {
	return query{sql, args, func(rows pgx.Rows) (func(*Facts) []Condition, int, error) {
		read, err := pgx.CollectRows(rows, pgx.RowToStructByPos[T])
		return func(f *Facts) []Condition { return say(f, read) }, len(read), err
	}}
}

// queue adds the query of a rule.
func (f *Facts) queue(b *pgx.Batch, r *Rule) {
	if r.find.sql == "" {
		return
	}
	b.Queue(r.find.sql, f.limits.args(r.find.args)...).Query(func(rows pgx.Rows) error {
		say, n, err := r.find.read(rows)
		f.toSay = append(f.toSay, func() {
			counted := f.found(r.Kind, say(f)...)
			if slices.Contains(r.find.args, any(listed)) && n >= f.limits.Listed || r.Most > 0 && counted >= r.Most {
				f.cut(r.Kind)
			}
		})
		return err
	})
}

// found adds conditions, of a kind unless they say of which, and returns how many items and so on they count.
func (f *Facts) found(kind Kind, all ...Condition) (counted int64) {
	for _, c := range all {
		if c.Kind == "" {
			c.Kind = kind
		}
		counted += c.Count
		f.Conditions = append(f.Conditions, c.Filled())
	}
	return counted
}

// cut notes that there may be more conditions of a kind, and of those read with it.
func (f *Facts) cut(kind Kind) {
	for i := range rules {
		if rules[i].Kind == kind || rules[i].With == kind {
			f.Cut = append(f.Cut, rules[i].Kind)
		}
	}
}
