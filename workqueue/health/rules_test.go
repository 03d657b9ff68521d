package health

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// Every kind has one row, which says what is shown of it.
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
		if rule := kind.Rule(); n != 1 || rule.Owner == "" && rule.Items == "" {
			t.Errorf("%s has %d rules, and says %+v", kind, n, rule)
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
		Title: "Full moon", Of: "endpoint", Many: "moons are full", Stops: StopsEndpoint,
		find: each(`SELECT name FROM (VALUES ('tides'), ('wolves')) v (name) LIMIT $1`, []any{listed},
			func(f *Facts, row *struct{ Name string }) Condition {
				return Condition{Subject: row.Name, Since: f.At, Title: "A full moon over " + row.Name}
			})})
	facts := testenv.Must(New(database.New(testenv.Pool(t))).Health(t.Context(), Limits{Listed: 2}))(t)
	found := slices.DeleteFunc(facts.Conditions, func(c Condition) bool { return c.Kind != fake })
	want := Condition{Kind: fake, Severity: Warning, Owner: OwnerNobody, Subject: "tides", Since: facts.At,
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
	for _, bad := range []*inspect.BadPart{nil, &part} {
		remedy := againstFailures(part.Run, bad)
		if reset, rerun := strings.Contains(remedy, part.Command()), strings.Contains(remedy, "tranche run rerun"); reset !=
			(bad != nil) || rerun == reset {
			t.Errorf("with %v: %s", bad, remedy)
		}
	}
}

// Runs that an operator holds are of one kind with those over their threshold, and both are counted.
func TestHeldRunsThatAreNotListedAreCounted(t *testing.T) {
	t.Parallel()
	f := &Facts{More: map[Kind]int64{}}
	conditionsOfHeld(f, []heldRun{
		{Hold: control.HoldOperator, Runs: 30}, {Hold: control.HoldThreshold, Runs: 2},
		{Hold: control.HoldThreshold, Runs: 2}, {Hold: control.HoldCanary, Runs: 1},
	})
	if want := (map[Kind]int64{RunHeld: 29, RunApproval: 0}); !maps.Equal(f.More, want) {
		t.Errorf("got %v, want %v", f.More, want)
	}
}

// The parts of failed runs are read for the newest only, however many conditions are listed.
func TestPartsOfFewFailedRunsAreRead(t *testing.T) {
	t.Parallel()
	all := []Condition{{Kind: FailedItems, Subject: "older runs"}, {Kind: RunHeld, Subject: workqueue.NewRunID().String()}}
	var oldest workqueue.RunID
	for range maxResets + 1 {
		oldest = workqueue.NewRunID()
		all = append(all, Condition{Kind: FailedItems, Subject: oldest.String()})
	}
	if found := newestFailed(all); len(found) != maxResets || found[oldest] != nil {
		t.Errorf("%d runs, the oldest: %v", len(found), found[oldest])
	}
}
