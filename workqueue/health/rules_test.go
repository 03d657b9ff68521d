package health

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// Every kind has one row, which says what is shown of it in templates as they should be.
func TestEveryKindHasARule(t *testing.T) {
	t.Parallel()
	text := testenv.Must(os.ReadFile("rules.go"))(t)
	names := regexp.MustCompile(`(?m)^\t(\w+) +Kind = "(\w+)"`).FindAllSubmatch(text, -1)
	if len(names) < 80 {
		t.Errorf("only %d kinds were found; the scan looks in the wrong place", len(names))
	}
	for _, name := range names {
		n, kind := 0, Kind(name[2])
		for i := range rules {
			if rules[i].Kind == kind {
				n++
			}
		}
		rule := kind.Rule()
		for _, one := range slices.Insert(slices.Collect(maps.Values(rule.Cases)), 0, rule) {
			all := one.Title + one.Detail + one.Remedy + one.Link + one.Who + one.Why + one.Next
			for _, a := range one.Advice {
				all += a.Do + a.Command
			}
			testenv.Same(t, sayer(time.Now(), nil)("{{if false}}"+all+"{{end}}"), "", "%s", kind)
		}
		if n != 1 || rule.Owner == "" && rule.Items == "" {
			t.Errorf("%s has %d rules, and says %+v", kind, n, rule)
		}
	}
}

// What the words of a rule name is a column of its statement.
func TestWordsNameColumns(t *testing.T) {
	t.Parallel()
	pool := testenv.Pool(t)
	limits := Limits{Waiting: time.Minute, Listed: 3}
	names := regexp.MustCompile(`\.([a-z]+)\b`)
	for i := range rules {
		r := &rules[i]
		of := r
		if r.With != "" {
			rule := r.With.Rule()
			of = &rule
		}
		if of.find == "" {
			continue // servers see it: they are asked in the tests of internal/health
		}
		rows := testenv.Must(pool.Query(t.Context(), of.find, limits.args(of.args)...))(t)
		columns := []string{"bad"}
		for _, f := range rows.FieldDescriptions() {
			columns = append(columns, f.Name)
		}
		if r.Kind == OldestWaiting { // of the runs that Facts.queueSteps finds
			columns = append(columns, "name", "plan", "endpoint")
		}
		rows.Close()
		for _, one := range slices.Insert(slices.Collect(maps.Values(r.Cases)), 0, *r) {
			text := one.Title + one.Detail + one.Remedy + one.Link
			for _, said := range regexp.MustCompile(`{{.*?}}`).FindAllString(text, -1) {
				for _, name := range names.FindAllStringSubmatch(said, -1) {
					if !slices.Contains(columns, name[1]) {
						t.Errorf("%s: %s names %s, and its statement has %q", r.Kind, said, name[1], columns)
					}
				}
			}
		}
		if !slices.Contains(columns, "subject") || !slices.Contains(columns, "since") {
			t.Errorf("%s: its statement has %q", r.Kind, columns)
		}
	}
}

// To add a reason takes a row: it is found, worded, and stops runs.
//
//nolint:paralleltest // it changes the table
func TestAReasonIsOneRow(t *testing.T) {
	const fake Kind = "moon_is_full"
	before := rules
	t.Cleanup(func() { rules = before })
	rules = append(slices.Clone(rules), Rule{Kind: fake, Owner: OwnerNobody, Items: "waiting for a new moon over {to}",
		Name: "Full moon", Of: "endpoint", Many: "moons are full", Stops: StopsEndpoint,
		Title: "A full moon over {{.subject}}", args: []any{listed},
		find: `SELECT name AS subject, tranche_now() AS since FROM (VALUES ('tides'), ('wolves')) v (name) LIMIT $1`})
	facts := testenv.Must(New(database.New(testenv.Pool(t))).Health(t.Context(), Limits{Listed: 2}))(t)
	found := slices.DeleteFunc(facts.Conditions, func(c Condition) bool { return c.Kind != fake })
	want := Condition{Kind: fake, Severity: Warning, Owner: OwnerNobody, Subject: "tides", Since: found[0].Since,
		Title: "A full moon over tides", Link: "/endpoint?name=tides", Count: 1, Of: 1}
	if len(found) != 2 || found[0] != want || found[0].Stops() != StopsEndpoint || !slices.Contains(facts.Cut, fake) {
		t.Errorf("found %+v, cut %q; want %+v and another one", found, facts.Cut, want)
	}
	group := MissingGroup{Reason: fake, Endpoint: "tides"}
	if text := group.headline(); text != "waiting for a new moon over endpoint tides" || !fake.Amiss() {
		t.Errorf("items that wait for it say %q", text)
	}
}

// What failed for a bad part is not advised to be run again, which would give it the same part.
func TestFailuresForABadPartWantAReset(t *testing.T) {
	t.Parallel()
	part := inspect.BadPart{Run: workqueue.NewRunID(), Step: "post", Of: "branches", Code: workqueue.CodeBadPart}
	for _, bad := range []any{nil, part.Command()} {
		c := FailedItems.Condition(time.Now(), Row{"subject": part.Run.String(), "since": time.Now(), "bad": bad})
		rerun := strings.Contains(c.Remedy, "tranche run rerun")
		if reset := strings.Contains(c.Remedy, part.Command()); reset != (bad != nil) || c.Resets != reset || rerun == reset {
			t.Errorf("with %v: %+v", bad, c)
		}
	}
}

// Of runs that are held a few of each kind are listed, and all are counted.
func TestHeldRunsThatAreNotListedAreCounted(t *testing.T) {
	t.Parallel()
	pool := testenv.Pool(t)
	for _, hold := range []control.Hold{control.HoldOperator, control.HoldOperator, control.HoldOperator,
		control.HoldThreshold, control.HoldThreshold, control.HoldCanary} {
		testenv.Must(pool.Exec(t.Context(), `INSERT INTO batchrun (id, plan, spec, state, hold, held_at, held_by)
			VALUES ($1, 'p', '{}', 'running', $2, tranche_now(), 'ann')`, workqueue.NewRunID(), hold))(t)
	}
	f := testenv.Must(New(database.New(pool)).Health(t.Context(), Limits{Listed: 1}))(t)
	if want := (map[Kind]int64{RunHeld: 2, RunOverLimit: 1, RunApproval: 0}); !maps.Equal(f.More, want) {
		t.Errorf("got %v, want %v", f.More, want)
	}
}

// The parts of failed runs are read for the newest only, however many conditions are listed.
func TestPartsOfFewFailedRunsAreRead(t *testing.T) {
	t.Parallel()
	f := &Facts{rows: []found{{FailedItems, Row{"subject": "older runs"}},
		{RunHeld, Row{"subject": workqueue.NewRunID().String()}}}}
	var oldest workqueue.RunID
	for range maxResets + 1 {
		oldest = workqueue.NewRunID()
		f.rows = append(f.rows, found{FailedItems, Row{"subject": oldest.String()}})
	}
	if found := f.newestFailed(); len(found) != maxResets || found[oldest] != nil {
		t.Errorf("%d runs, the oldest: %v", len(found), found[oldest])
	}
}
