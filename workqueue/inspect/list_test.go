package inspect_test

import (
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

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
