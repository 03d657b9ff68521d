package inspect_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/redo"
)

func (b *bench) errors(run workqueue.RunID) inspect.Errors {
	b.Helper()
	found := testenv.Must(inspect.New(b.Store).Errors(b.Context(), run))(b)
	listed := found.MoreItems
	for i := range found.Groups {
		listed += found.Groups[i].Count
	}
	testenv.Same(b, listed, found.Items, "items of the groups and the rest")
	return found
}

func TestErrorsGroupsWhatIsFailedNow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(10), 10)
	b.Record(storetest.Failing(b.One(run), "test", func(o workqueue.Ordinal) *workqueue.SlotError {
		switch {
		case o < 6:
			return &workqueue.SlotError{Code: "MANY", Message: fmt.Sprintf("customer %d is unknown", o)}
		case o < 8:
			return &workqueue.SlotError{Code: "MANY", Message: "another thing"}
		case o == 8:
			return &workqueue.SlotError{Code: "ONE", Message: "another thing"}
		default:
			return nil
		}
	}))
	found := b.errors(run)
	if found.Items != 9 || len(found.Groups) != 3 || found.MoreGroups != 0 {
		t.Fatalf("got %+v; want three groups of 9 items", found)
	}
	many := found.Groups[0]
	if many.Code != "MANY" || many.Shape != "customer # is unknown" || many.Count != 6 || many.Step != "only" ||
		many.First == nil || many.Last == nil || !slices.Equal(many.Services, []string{"test"}) || len(many.ID) != 8 {
		t.Errorf("the first group is %+v", many)
	}
	want := []inspect.ErrorExample{{Key: "C0", Message: "customer 0 is unknown"},
		{Key: "C1", Message: "customer 1 is unknown"},
		{Key: "C2", Message: "customer 2 is unknown"}}
	testenv.SameList(t, many.Examples, want, "the examples")
	if other := found.Groups[1]; other.Code != "MANY" || other.Count != 2 || len(other.Examples) != 2 {
		t.Errorf("the second group is %+v", other)
	}

	b.Rerun(run, redo.Selection{Failed: true}) // what runs again is failed no more; see TestErrorsAreCountedAnew
	b.Store = database.New(b.Pool)             // the other may give them for a while, if they took long to find
	found = b.errors(run)
	testenv.Same(t, len(found.Groups), 0, "during the rerun: %+v", found)
	b.Check()
}

// The services and the examples of a group come from all its slices.
func TestErrorsOfManySlices(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(2), 24)
	for i, s := range b.Claim(run, storetest.Plenty) {
		b.Record(storetest.Failing(s, fmt.Sprintf("service %c", 'a'+i), func(o workqueue.Ordinal) *workqueue.SlotError {
			if o%2 == 0 {
				return nil
			}
			return &workqueue.SlotError{Code: "ODD", Message: fmt.Sprint(o)}
		}))
	}
	found := b.errors(run)
	if len(found.Groups) != 1 || found.Groups[0].Count != 12 {
		t.Fatalf("got %+v; want one group of 12", found)
	}
	g := found.Groups[0]
	if len(g.Services) != 10 || g.Services[0] != "service a" || len(g.Examples) != 3 || g.Examples[2].Message != "5" {
		t.Errorf("the group is %+v", g)
	}
}

// However many codes and messages services make up, and whatever is in them, the answer stays small and adds up.
func TestErrorsAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const items = inspect.MaxErrorGroups + 50
	run := b.Load(storetest.Chunked(100), items) // whose messages take long to write
	word := func(n int) string {
		return strings.Repeat("x", 1+n/26) + string(rune('g'+n%20)) + strings.Repeat("y", n%26)
	}
	long := strings.Repeat("é\x1b[31m", 2000)
	for _, s := range b.Claim(run, storetest.Plenty) {
		b.Record(storetest.Failing(s, "", func(o workqueue.Ordinal) *workqueue.SlotError {
			return &workqueue.SlotError{Code: word(int(o)), Message: long}
		}))
	}
	found := b.errors(run)
	if found.Items != items || len(found.Groups) != inspect.MaxErrorGroups || found.MoreGroups != 50 ||
		found.MoreItems != 50 {
		t.Fatalf("%d groups of %d items, %d groups and %d items more", len(found.Groups), found.Items, found.MoreGroups,
			found.MoreItems)
	}
	g := found.Groups[0]
	if shape, example := []rune(g.Shape), []rune(g.Examples[0].Message); len(shape) != 200 || len(example) != 1000 {
		t.Errorf("%d characters of a shape, %d of an example", len(shape), len(example))
	}
}

func TestMessageShape(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cases := []struct{ message, shape string }{
		{"", ""},
		{"the service broke down", "the service broke down"},
		{"customer 17 is not known", "customer # is not known"},
		{"12.50 EUR or -3 of 1,000,000", "# EUR or -# of #"},
		{"no such ids: 1, 2, 3", "no such ids: #"},
		{"at 2026-01-15 10:00:00 and 2026-01-15T10:00:00Z", "at # # and #T#Z"},
		{"account 4e252ff0-5ed7-4012-9840-dd840ba86513 closed", "account # closed"},
		{"hash eccbc87e4b5ce2fe28308fd9f2a7baf3 is not 0x1f", "hash # is not #"},
		{"short deadbee and Faded", "short # and Faded"},
		{"CUST-18, users2 and 8Xk2q after 10ms", "CUST-#, users# and # after #"},
		{`field "name" of "x 1" is bad`, "field # of # is bad"},
		{`never closed: "abc`, "never closed: #"},
		{"in 'single', `back`, “curly” and «angle» quotes", "in #, #, # and # quotes"},
		{"can't open the customer's file", "can't open the customer's file"},
		{"10.0.0.1:8080 refused", "# refused"},
		{`{"code":17,"why":"x"}`, "{#:#,#:#}"},
		{strings.Repeat("a ", 600), strings.Repeat("a ", 100)},
		{`"` + strings.Repeat("very long ", 500) + `" is too long`, "#"},
	}
	run := b.Load(storetest.Chunked(len(cases)), len(cases))
	b.Record(storetest.Failing(b.One(run), "", func(o workqueue.Ordinal) *workqueue.SlotError {
		return &workqueue.SlotError{Code: fmt.Sprintf("case %d", o), Message: cases[o].message}
	}))
	shapes := map[string]string{}
	for _, g := range b.errors(run).Groups {
		shapes[g.Code] = g.Shape
	}
	for i, c := range cases {
		if got, ok := shapes[fmt.Sprintf("case %d", i)]; !ok || got != c.shape {
			t.Errorf("%.60q: got %.60q; want %.60q", c.message, got, c.shape)
		}
	}
}

// The item's own key in its message is {key}, so that messages that differ in it only are one group, in lists and for
// reruns alike.
func TestMessagesWithTheirKeys(t *testing.T) {
	t.Parallel()
	b := setup(t)
	long := strings.Repeat("k", 1200)
	cases := []struct{ key, message, shape string }{
		{"alice", "customer alice is not known", "customer {key} is not known"},
		{"bob", "customer bob is not known", "customer {key} is not known"},
		{"C-10", "C-10: no account of C-10", "{key}: no account of {key}"},
		{"C-1", "C-10 is not C-1.", "C-# is not {key}."},
		{"ali", "malice, alien and Ali", "malice, alien and Ali"},
		{"mal", "malice of mal", "malice of {key}"},
		{"Zo", "no Zoë here", "no Zoë here"},
		{"Zoë", "no Zoë here", "no {key} here"},
		{"a", "a customer a", "a customer a"},
		{"1", "line 1 of 17", "line # of #"},
		{"17", "line 1 of 17", "line # of #"},
		{"2026-01-15", "on 2026-01-15 at noon", "on # at noon"},
		{"4e252ff0-5ed7-4012-9840-dd840ba86513", "account 4e252ff0-5ed7-4012-9840-dd840ba86513", "account {key}"},
		{"x.*y", "no x.*y, but xzzy", "no {key}, but xzzy"},
		{"50%_off", "code 50%_off, not 50 off", "code {key}, not # off"},
		{`a\1(b`, `at a\1(b|`, "at {key}|"},
		{"(c|d)+", "(c|d)+ and dd", "{key} and dd"},
		{"eve", `field "eve" and 'eve'`, "field {key} and {key}"},
		{"dan", `said "that dan" then`, "said # then"},
		{"aa", "aaaa aa", "aaaa {key}"},
		{long, "no " + long[:20], "no " + long[:20]},
		{"end", "the end", "the {key}"},
		{"nothing", "", ""},
	}
	all := make([]string, len(cases))
	for i, c := range cases {
		all[i] = c.key
	}
	run := b.LoadKeys(storetest.Chunked(len(cases)), all...)
	b.Record(storetest.Failing(b.One(run), "", func(o workqueue.Ordinal) *workqueue.SlotError {
		return &workqueue.SlotError{Code: fmt.Sprintf("case %d", max(o, 1)), Message: cases[o].message}
	}))
	groups := map[string]inspect.ErrorGroup{}
	for _, g := range b.errors(run).Groups {
		groups[g.Code] = g
	}
	for i, c := range cases {
		g := groups[fmt.Sprintf("case %d", max(i, 1))]
		if g.Shape != c.shape || g.Examples[0].Message == "" && c.message != "" {
			t.Errorf("%.40q in %.60q: got %.60q; want %.60q", c.key, c.message, g.Shape, c.shape)
		}
		want := int64(1)
		if i < 2 {
			want = 2
		}
		out := testenv.Must(redo.New(b.Store).Rerun(t.Context(), redo.RerunRequest{
			Run: run, Select: redo.Selection{Groups: []string{g.ID}}, DryRun: true,
		}))(t)
		testenv.Same(t, out.Items, want, "%.40q: items of a rerun of its group", c.key)
	}
}
