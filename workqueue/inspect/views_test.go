package inspect_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

func TestResolve(t *testing.T) {
	t.Parallel()
	b := setup(t)
	named := func(name string) workqueue.RunID {
		req := storetest.Request()
		req.Name = name
		return b.Load(req, 1)
	}
	first, second, third := named("year-end"), named("twice"), named("twice")
	b.Exec(`UPDATE batchrun SET created_at = created_at`) // ids alone tell the order

	resolves := func(ref string, want workqueue.RunID) {
		t.Helper()
		testenv.Same(t, testenv.Must(inspect.New(b.Store).Resolve(t.Context(), ref))(t), want, "%q", ref)
	}
	resolves("last", third)
	resolves("year-end", first)
	resolves(first.String(), first)
	resolves(strings.ToUpper(second.String()), second)
	resolves(strings.ReplaceAll(second.String(), "-", ""), second)
	resolves(third.String()[:30], third)
	resolves(second.String()[len(second.String())-8:], second) // as the dashboard shows it
	resolves(first.String()[20:], first)

	var ambiguous *workqueue.AmbiguousError
	for _, ref := range []string{"twice", first.String()[:4]} {
		if _, err := inspect.New(b.Store).Resolve(t.Context(), ref); !errors.As(err, &ambiguous) ||
			len(ambiguous.Matches) < 2 {
			t.Errorf("%q: got %v; want an AmbiguousError", ref, err)
		}
	}
	zeros := strings.Repeat("0", 99)
	for _, ref := range []string{"", "nope", first.String()[:3], "ffffffff", "a\x00b", "\xff\xfe", zeros} {
		_, err := inspect.New(b.Store).Resolve(t.Context(), ref)
		testenv.Is(t, err, workqueue.ErrNotFound, "%q", ref)
	}
}

func TestItemTellsEveryAttempt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(2), 2)
	b.Record(storetest.Faulty(b.One(run), workqueue.SlotError{Code: "BUSY", Message: "later", Retry: true}))
	b.Record(storetest.Whole(b.One(run)))
	items := testenv.Must(inspect.New(b.Store).Items(t.Context(), run, "C1"))(t)
	testenv.MustSame(t, len(items), 1, "items")
	step := items[0].Steps[0]
	if items[0].State != workqueue.OutcomeDone || step.State != "done" || string(step.Result) != `{"of":1}` {
		t.Errorf("the item is %+v", items[0])
	}
	testenv.MustSame(t, len(step.Attempts), 2, "attempts")
	first, second := step.Attempts[0], step.Attempts[1]
	if first.Outcome != "retried" || first.Error == nil || first.Error.Code != "BUSY" || first.Service != "test" {
		t.Errorf("the first attempt is %+v", first)
	}
	if second.Outcome != "done" || second.Cause != "retry" || second.Attempt != 2 || second.Error != nil {
		t.Errorf("the second attempt is %+v", second)
	}
	for _, key := range []string{"C9", "", "a\x00b"} {
		_, err := inspect.New(b.Store).Items(t.Context(), run, key)
		testenv.Is(t, err, workqueue.ErrNotFound, "key %q", key)
	}
}

// Items are counted by what their payloads say, with where they are now; the map says of each where it belongs.
func TestGroupsByAFieldOfThePayload(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(100), 300)
	b.Exec(`UPDATE work_queue SET payload = CASE
		WHEN ordinal < 150 THEN '{"branch": "north", "deep": {"x": 1}, "n": 1}'
		WHEN ordinal < 200 THEN '{"branch": 7}'
		WHEN ordinal < 201 THEN '{"branch": "a\u0000b\\u0000\ud83d\ude00", "list": []}'
		WHEN ordinal < 202 THEN '[1]'
		WHEN ordinal < 210 THEN '{"branch": null}'
		ELSE '{"branch": "v' || ordinal || '"}' END WHERE run_id = $1`, run)
	out := b.Claim(run, 2)
	b.Record(storetest.Failing(out[0], "", func(o workqueue.Ordinal) *workqueue.SlotError {
		if o < 10 {
			return &workqueue.SlotError{Code: "BAD", Message: "no"}
		}
		return nil
	}))
	store := inspect.New(b.Store)
	found := testenv.Must(store.GroupsBy(t.Context(), run, "branch"))(t)
	want := []inspect.PayloadGroup{
		{Value: new("north"), Items: 150, Done: 90, Failed: 10, InProgress: 50},
		{Value: new("7"), Items: 50, InProgress: 50},
		{Items: 9},
		{Value: new("a\ufffdb\\u0000😀"), Items: 1},
	}
	for i, w := range want {
		if got := found.Groups[i]; fmt.Sprint(text(got.Value), got.Items, got.Done, got.Failed, got.InProgress) !=
			fmt.Sprint(text(w.Value), w.Items, w.Done, w.Failed, w.InProgress) {
			t.Errorf("group %d is %+v of %q; want %+v", i, got, text(got.Value), w)
		}
	}
	if len(found.Groups) != 50 || found.Others == nil || found.Others.Values != 44 || found.Others.Items != 44 ||
		found.Items != 300 || fmt.Sprint(found.Fields) != "[branch n]" {
		t.Errorf("%d groups, others %+v, fields %v", len(found.Groups), found.Others, found.Fields)
	}
	plane, err := store.GroupPlane(t.Context(), run, "branch", 0, 128)
	if err != nil || len(plane.Bytes) != 300 || plane.Items != 300 || plane.Bytes[149] != 0 || plane.Bytes[150] != 1 ||
		plane.Bytes[201] != 2 || plane.Bytes[299] != 50 {
		t.Errorf("the map is %v, %v", plane, err)
	}
	b.Record(storetest.Whole(out[1]))
	testenv.Same(t, testenv.Must(store.GroupsBy(t.Context(), run, "branch"))(t).Groups[0].Done, 140,
		"done after another answer")
	testenv.Same(t, len(testenv.Must(store.GroupPlane(t.Context(), run, "branch", 1, 128))(t).Bytes), 0,
		"items behind the end")
}

func text(value *string) string {
	if value == nil {
		return "none"
	}
	return "=" + *value
}

// A field that tells nearly all items apart is refused, and so is a run that there is not.
func TestGroupsAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(1000), 66_000)
	b.Exec(`UPDATE work_queue SET payload = '{"id": ' || ordinal || ', "half": ' || ordinal / 2 || '}'
		WHERE run_id = $1`, run)
	store := inspect.New(b.Store)
	for range 2 {
		_, err := store.GroupsBy(t.Context(), run, "id")
		_ = testenv.As[*inspect.GroupingError](t, err, "by an id")
	}
	found, err := store.GroupsBy(t.Context(), run, "half")
	if err != nil || found.Others.Values != 33_000-50 || found.Others.Items != 66_000-100 {
		t.Errorf("by halves: %+v, %v", found, err)
	}
	values := make([]string, 0, len(found.Groups))
	for _, g := range found.Groups {
		values = append(values, *g.Value)
	}
	if !slices.IsSorted(values) {
		t.Errorf("groups of one size are in the order %v", values)
	}
	_, err = store.GroupsBy(t.Context(), workqueue.NewRunID(), "id")
	testenv.Is(t, err, workqueue.ErrNotFound, "a run that there is not")
}

// Groups by a field are kept in memory, and follow corrections.
func TestGroupsFollowCorrections(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(4), 10)
	b.Correct(run, `{"branch":"north"}`, storetest.Names(10)...)
	store := inspect.New(b.Store)
	look := func() (all []string) {
		found := testenv.Must(store.GroupsBy(t.Context(), run, "branch"))(t)
		for _, g := range found.Groups {
			all = append(all, fmt.Sprint(text(g.Value), g.Items))
		}
		return all
	}
	testenv.MustSame(t, fmt.Sprint(look()), "[=north10]", "groups")
	b.Correct(run, `{"branch":"south"}`, "C1", "C2")
	testenv.Same(t, fmt.Sprint(look()), "[=north8 =south2]", "groups after a correction")
}

// Looks at many runs read four at a time, and those at one run read it once.
func TestLooksAtSingleRunsAreBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	db, pool := b.narrow(40)
	var runs []workqueue.RunID
	for range 8 {
		runs = append(runs, b.Load(storetest.Chunked(10), 10))
	}
	tx := testenv.Must(b.Pool.Begin(t.Context()))(t)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	testenv.Must(tx.Exec(t.Context(), `LOCK TABLE step_profile`))(t) // which a look reads last
	var looks sync.WaitGroup
	for _, run := range append(runs, runs...) {
		looks.Go(func() {
			_, err := inspect.New(db).ForecastRun(t.Context(), run)
			testenv.Same(t, err, nil, "a forecast")
		})
	}
	const each = 5 // statements of a look; the run itself is one more
	b.Until("four looks wait for the lock", func() bool {
		return b.Waiters() == 4 && pool.Stat().AcquireCount() == 16+4*each && pool.Stat().AcquiredConns() == 4
	})
	testenv.NoError(t, tx.Rollback(t.Context()))
	looks.Wait()
	tx = testenv.Must(b.Pool.Begin(t.Context()))(t)
	testenv.Must(tx.Exec(t.Context(), `LOCK TABLE work_queue, work_result, work_order`))(t) // no look reads items
	again := testenv.Must(inspect.New(database.New(b.Pool)).ForecastRun(t.Context(), runs[0]))(t)
	testenv.Same(t, strings.Contains(again.Forecast.WhyNot, "fewer than 3"), true, "%s", again.Forecast.WhyNot)
	testenv.Same(t, pool.Stat().AcquireCount(), 16+8*each, "connections taken")
}

// Every order holds over all pages, with runs that have completed and others; folded lists have a line for each
// schedule; what waits for a person is found however old it is.
func TestListsOfRuns(t *testing.T) {
	t.Parallel()
	b := setup(t)
	runs := map[string]workqueue.RunID{}
	for i, items := range []int{30, 10, 20, 5, 8, 3} {
		req := storetest.Chunked(4)
		req.Name = string(rune('a' + i))
		runs[req.Name] = b.Load(req, items)
	}
	b.Record(storetest.Faulty(b.Claim(runs["b"], 1)[0], workqueue.SlotError{Code: "bad"}))
	b.Exec(`INSERT INTO schedule (name, spec, source, zone, created_by, changed_by)
		VALUES ('nightly', '{}', '', 'UTC', '', '')`)
	b.Exec(`UPDATE batchrun SET schedule = 'nightly', started_at = '2026-01-01' WHERE name <> 'f'`)
	b.Exec(`UPDATE batchrun SET state = 'completed', finished_at = timestamptz '2026-01-01' + items * interval '1 s',
			failed = CASE name WHEN 'c' THEN 9 WHEN 'e' THEN 2 ELSE 0 END,
			done = items - CASE name WHEN 'c' THEN 9 WHEN 'e' THEN 2 ELSE 0 END
		WHERE name NOT IN ('b', 'f')`)
	look := inspect.New(b.Store)
	lists := func(want string, f inspect.RunFilter) {
		t.Helper()
		for f.Limit = 1; f.Limit < 8; f.Limit += 2 {
			var got strings.Builder
			f.Before = workqueue.RunID{}
			for more := true; more; {
				page, further, err := look.RunsPage(t.Context(), f)
				testenv.NoError(t, err)
				for i := range page {
					got.WriteString(page[i].Name)
					f.Before = page[i].ID
				}
				more = further
			}
			testenv.Same(t, got.String(), want, "%+v", f)
		}
	}
	lists("abcdef", inspect.RunFilter{Sort: inspect.SortName})
	lists("acbedf", inspect.RunFilter{Sort: inspect.SortItems})
	lists("bacedf", inspect.RunFilter{Sort: inspect.SortTime})
	lists("cbefda", inspect.RunFilter{Sort: inspect.SortFailed})
	lists("ce", inspect.RunFilter{Sort: inspect.SortFailed, Result: "failed"})
	lists("edcba", inspect.RunFilter{Schedule: "nightly"})
	lists("fe", inspect.RunFilter{Fold: true})
	past := testenv.Must(look.Runs(t.Context(), inspect.RunFilter{Fold: true}))(t)[1].Past
	if len(past) != 5 || past[0].ID != runs["a"] || past[0].Seconds != 30 || past[2].Failed != 9 ||
		past[1].State != "running" {
		t.Errorf("the past of the schedule is %+v", past)
	}
	lists("", inspect.RunFilter{Attention: &inspect.Stalled{}})
	lists("fb", inspect.RunFilter{Attention: &inspect.Stalled{All: true}})
	lists("f", inspect.RunFilter{Attention: &inspect.Stalled{Runs: []workqueue.RunID{runs["f"], runs["a"]}}})
	lists("fb", inspect.RunFilter{Attention: &inspect.Stalled{Endpoints: []string{storetest.Endpoint}}})
	b.PauseRun(runs["b"])
	lists("b", inspect.RunFilter{Attention: &inspect.Stalled{}})
	_, err := look.Runs(t.Context(), inspect.RunFilter{Sort: inspect.SortItems, Before: workqueue.RunID{9}})
	testenv.Is(t, err, workqueue.ErrNotFound, "behind a run that does not exist")
}
