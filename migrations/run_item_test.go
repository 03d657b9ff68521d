package migrations_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/export"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/settle"
	"github.com/tranchehq/tranche/workqueue/start"
)

// itemRun is a run of three steps, the third of which needs the second and that the first, and who works on it.
type itemRun struct {
	*testing.T
	pool    *pgxpool.Pool
	store   *database.DB
	session workqueue.SessionID
	id      workqueue.RunID
	steps   []string
}

func newItemRun(t *testing.T, items, canary int) *itemRun {
	t.Helper()
	url := testenv.Database(t)
	// The view is read as the role that serves.
	r := &itemRun{T: t, pool: testenv.Connect(t, testenv.Serving(t, url)), steps: []string{"first", "second", "third"}}
	r.store = database.New(r.pool)
	var err error
	node := session.NodeInfo{Host: "host-of-the-node"}
	r.session, err = session.New(r.store).StartSession(t.Context(), node, time.Hour)
	testenv.NoError(t, err)
	req := start.LoadRequest{Plan: "test", Session: r.session, Canary: canary}
	for i, name := range r.steps {
		step := workqueue.StepSpec{
			Name: name, Endpoint: "e-" + name, StepSettings: workqueue.StepSettings{Chunk: 7, InFlight: 1000, MaxAttempts: 3,
				Timeout: time.Minute},
		}
		if i > 0 {
			step.Needs, step.Inputs = []int{i - 1}, []int{i - 1}
		}
		req.Steps = append(req.Steps, step)
	}
	r.id = testenv.Must(start.New(r.store).Load(t.Context(), req, storetest.Keys(storetest.Names(items)...)))(t).Run
	return r
}

func (r *itemRun) claim(step, most int) []workqueue.Slice {
	r.Helper()
	claimed := testenv.Must(dispatch.New(r.store).Claim(r.Context(), dispatch.ClaimRequest{
		Session: r.session, Run: r.id, Step: workqueue.Step(step), MaxSlices: most, MaxBytes: 1 << 20,
	}))(r)
	return claimed.Slices
}

// answer answers a slice, each item with what is chosen for it: a result, a final error, one that may pass, or nothing.
func (r *itemRun) answer(s *workqueue.Slice, choose func() int) {
	r.Helper()
	a := settle.Answer{Slice: s.ID, Endpoint: s.Endpoint, Service: "test@1 one"}
	for bit := range s.Mask.All() {
		slot := settle.Slot{Ordinal: s.Block.Ordinal(bit)}
		switch choose() {
		case 0:
			slot.Result = fmt.Appendf(nil, `{"of":%d}`, slot.Ordinal)
		case 1:
			slot.Err = &workqueue.SlotError{Code: "bad", Message: "it is bad"}
		case 2:
			slot.Err = &workqueue.SlotError{Code: "later", Retry: true}
		default:
			continue
		}
		a.Slots = append(a.Slots, slot)
	}
	a.Answered = len(a.Slots)
	testenv.Must(settle.New(r.store).Record(r.Context(), []settle.Answer{a}))(r)
}

// reset undoes what some items have at a step.
func (r *itemRun) reset(step string) {
	r.Helper()
	var keys []string
	err := r.pool.QueryRow(r.Context(), `SELECT array_agg(key) FROM (SELECT key FROM run_item
		WHERE run_id = $1 AND step_name = $2 AND state = 'done' ORDER BY ordinal % 7, ordinal LIMIT 4) i`, r.id, step).
		Scan(&keys)
	testenv.NoError(r, err)
	testenv.Must(redo.New(r.store).Reset(r.Context(), redo.ResetRequest{
		Run: r.id, Actor: "test", Select: redo.Selection{Step: step, Keys: keys},
	}))(r)
}

// rows are items of a step as the view has them.
func (r *itemRun) rows(step string, from, to workqueue.Ordinal) []inspect.ItemRow {
	r.Helper()
	found := testenv.Must(r.pool.Query(r.Context(), `
		SELECT ordinal, key, state, attempts, error_code, coalesce(error_message, '') FROM run_item
		WHERE run_id = $1 AND step_name = $2 AND ordinal BETWEEN $3 AND $4 ORDER BY ordinal`,
		r.id, step, from, to))(r)
	all := testenv.Must(pgx.CollectRows(found, func(row pgx.CollectableRow) (item inspect.ItemRow, err error) {
		var code *string
		var message string
		err = row.Scan(&item.Ordinal, &item.Key, &item.State, &item.Attempts, &code, &message)
		if code != nil {
			item.Error = &inspect.ItemError{Code: *code, Message: message}
		}
		return item, err
	}))(r)
	return all
}

// compare holds the view against what the store lists of a range, and adds how many items of a step are in a state.
func (r *itemRun) compare(from, to workqueue.Ordinal, states map[string]int) {
	r.Helper()
	for _, step := range r.steps {
		var want []inspect.ItemRow
		page := inspect.ItemRange{
			Run: r.id, From: from, To: to, Step: step, After: -1, Limit: inspect.MaxItemRows,
		}
		for next := true; next; {
			listed := testenv.Must(inspect.New(r.store).ItemsIn(r.Context(), page))(r)
			want = append(want, listed.Items...)
			if next = listed.Next != nil; next {
				page.After = *listed.Next
			}
		}
		got := r.rows(step, from, to)
		testenv.MustSame(r, len(got), len(want), "step %s: rows", step)
		for i := range want {
			states[got[i].State]++
			testenv.Same(r, inWords(&got[i]), inWords(&want[i]), "step %s", step)
		}
	}
}

func inWords(item *inspect.ItemRow) string {
	return fmt.Sprintf("%d %s %s, attempts %d, %v", item.Ordinal, item.Key, item.State, item.Attempts, item.Error)
}

// A run that goes wrong in all ways reads the same in the view and in the API, in every state.
func TestTheViewOfItemsSaysWhatTheAPIDoes(t *testing.T) {
	t.Parallel()
	const items = 8192 + 40
	seen := map[string]int{}
	newItemRun(t, 100, 30).compare(0, 99, seen) // before its canary
	r := newItemRun(t, items, 0)
	random := rand.New(rand.NewPCG(1, 2)) // the same each time
	weighted := func() int {
		return max(0, random.IntN(8)-4) // a result in five of eight
	}
	for range 8 {
		for step := range r.steps {
			for i, s := range r.claim(step, 6) {
				if i%3 > 0 { // the others stay out
					r.answer(&s, weighted)
				}
			}
		}
		r.reset(r.steps[random.IntN(2)])
		r.compare(0, 299, seen)
		r.compare(8180, items, seen)
	}
	if n := r.parts(); n < 100 {
		t.Errorf("there are %d parts", n)
	}
	r.compare(0, items, seen)
	for _, state := range []string{
		"waiting", "held", "ready", "scheduled", "in_flight", "done", "failed", "skipped", "stale",
	} {
		if seen[state] == 0 {
			t.Errorf("no item was ever %s: %v", state, seen)
		}
	}
	r.counts(items)
	r.story()
}

// parts compares the view of parts with an export of them.
func (r *itemRun) parts() (n int) {
	r.Helper()
	var want []string
	all := testenv.Must(export.New(r.store).Open(r.Context(), export.Request{Run: r.id, Parts: true}))(r)
	testenv.NoError(r, all.Each(r.Context(), func(item *export.Item) error {
		for step, p := range item.Parts {
			if p.State != "" {
				want = append(want, fmt.Sprintf("%s %d %s %s %s", item.Key, step, p.State, p.Result, p.ErrorCode))
			}
		}
		return nil
	}))
	got := testenv.Must(r.pool.Query(r.Context(), `SELECT format('%s %s %s %s %s', key, step, state,
			convert_from(bytes, 'UTF8'), error_code) FROM run_item_parts
		WHERE run_id = $1 AND result IS NOT DISTINCT FROM convert_from(bytes, 'UTF8')::jsonb
		ORDER BY ordinal, step`, r.id))(r)
	parts := testenv.Must(pgx.CollectRows(got, pgx.RowTo[string]))(r)
	testenv.SameList(r, parts, want, "parts of the view, and of an export")
	return len(want)
}

// counts looks for the items of all steps in one statement, as the documentation has it.
func (r *itemRun) counts(items int) {
	r.Helper()
	var n, steps, others int
	err := r.pool.QueryRow(r.Context(), `SELECT sum(n), count(DISTINCT step), (SELECT count(*) FROM run_item
			WHERE run_id <> $1) FROM (SELECT step, state, count(*) AS n FROM run_item WHERE run_id = $1
			GROUP BY step, state) c`, r.id).Scan(&n, &steps, &others)
	if err != nil || n != items*len(r.steps) || steps != len(r.steps) || others != 0 {
		r.Errorf("%d items of %d steps, and %d of other runs, %v", n, steps, others, err)
	}
}

// story holds what the view says of single items against their pages in the API.
func (r *itemRun) story() {
	r.Helper()
	for i := range 60 {
		key := fmt.Sprintf("C%d", i)
		views := testenv.Must(inspect.New(r.store).Items(r.Context(), r.id, key))(r)
		testenv.MustSame(r, len(views), 1, "items")
		for _, want := range views[0].Steps {
			var generation *int
			var service, host *string
			var finished, changed *time.Time
			err := r.pool.QueryRow(r.Context(), `SELECT generation, service, host, finished_at, changed_at FROM run_item
				WHERE run_id = $1 AND key = $2 AND step = $3`, r.id, key, want.Step).
				Scan(&generation, &service, &host, &finished, &changed)
			testenv.NoError(r, err)
			if ended := want.Generation > 0; ended != (generation != nil) || ended != (service != nil) ||
				ended != (finished != nil) || ended && (*generation != int(want.Generation) ||
				*service != want.Service || !finished.Equal(*want.RecordedAt)) {
				r.Errorf("%s at %s: generation %v, service %v, finished %v; want %+v", key, want.Name, generation, service,
					finished, want)
			}
			asked := slices.Contains([]string{"in_flight", "done", "failed"}, want.State)
			if asked && (host == nil || *host != "host-of-the-node") || changed == nil {
				r.Errorf("%s at %s, %s: host %v, changed %v", key, want.Name, want.State, host, changed)
			}
		}
	}
}

var (
	loops   = regexp.MustCompile(`loops=(\d+)`)
	removed = regexp.MustCompile(`Rows Removed by (?:Join )?Filter: (\d+)`)
)

// Of a run that has just been loaded, PostgreSQL knows nothing until it has been analyzed, a minute later: its items
// are in a partition of their own. What the view is asked then compares no item with another, and finds one by its key.
func TestItemsAreFoundBeforeAnyStatistics(t *testing.T) {
	t.Parallel()
	const items = 200_000
	r := newItemRun(t, items, 0)
	for _, ask := range []struct {
		sql  string
		args []any
	}{
		{`SELECT state, count(*) FROM run_item WHERE run_id = $1 GROUP BY 1`, []any{r.id}},
		{`SELECT step_name, state, max(key), max(attempts) FROM run_item GROUP BY 1, 2`, nil},
		{`SELECT * FROM run_item WHERE run_id = $1 AND key = $2`, []any{r.id, "C9999"}},
		{`SELECT * FROM run_item_parts WHERE run_id = $1 AND key = $2`, []any{r.id, "C9999"}},
	} {
		read, times := 0, 0
		for _, line := range r.explain(ask.sql, ask.args...) {
			if m := loops.FindStringSubmatch(line); m != nil {
				times, _ = strconv.Atoi(m[1])
			}
			if m := removed.FindStringSubmatch(line); m != nil {
				n, _ := strconv.Atoi(m[1])
				read += n * times
			}
		}
		if most := items / 10; read > most {
			t.Errorf("%s reads %d useless rows; want at most %d", ask.sql, read, most)
		}
	}
}

// explain runs a statement and returns how PostgreSQL went about it.
func (r *itemRun) explain(sql string, args ...any) (plan []string) {
	r.Helper()
	rows, err := r.pool.Query(r.Context(), `EXPLAIN (ANALYZE, TIMING off) `+sql, args...)
	if err == nil {
		plan, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	testenv.NoError(r, err)
	return plan
}
