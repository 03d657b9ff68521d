package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/doctor"
	"github.com/tranchehq/tranche/workqueue/health"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/order"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/settle"
	"github.com/tranchehq/tranche/workqueue/start"
)

// byValue puts items in lanes by the field v of their payload.
func byValue(stop bool) *workqueue.RunOrder {
	return &workqueue.RunOrder{Rule: order.Rule{By: "v"}, Stop: stop}
}

// valued yields items C0, C1, … with the values given.
func valued(values ...string) func(*start.LoadItem) error { return valuedFrom(0, values...) }

func valuedFrom(first int, values ...string) func(*start.LoadItem) error {
	i := 0
	return func(item *start.LoadItem) error {
		if i == len(values) {
			return io.EOF
		}
		item.Key, item.Payload, item.Line = fmt.Sprint("C", first+i), fmt.Appendf(nil, `{"v":%q}`, values[i]), i+2
		i++
		return nil
	}
}

// loadLines loads a run whose items have the values given.
func (b *bench) loadLines(req start.LoadRequest, values ...string) workqueue.RunID {
	b.Helper()
	if req.Order == nil {
		req.Order = byValue(false)
	}
	req.Session = b.Session
	loaded := testenv.Must(start.New(b.Store).Load(b.Context(), req, valued(values...)))(b)
	return loaded.Run
}

// wantClaims claims all there is of the first step and wants just these items.
func (b *bench) wantClaims(run workqueue.RunID, want ...workqueue.Ordinal) []workqueue.Slice {
	b.Helper()
	claimed := b.ClaimStep(run, 0, storetest.Plenty).Slices
	var got []workqueue.Ordinal
	for _, s := range claimed {
		got = append(got, storetest.Ordinals(s)...)
	}
	slices.Sort(got)
	testenv.MustSame(b, fmt.Sprint(got), fmt.Sprint(want), "claimed items: %s", b.Dump(run))
	return claimed
}

func TestLinesOfPartitionsAndOfFixedValues(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Request()
	req.Order = &workqueue.RunOrder{Rule: order.Rule{By: "v", Partitions: 2}}
	run := b.loadLines(req, "a", "b", "c", "d")
	var want []workqueue.Ordinal
	seen := map[int]bool{}
	for i, v := range []string{"a", "b", "c", "d"} {
		if p := order.Partition(v, 2); !seen[p] {
			seen[p] = true
			want = append(want, workqueue.Ordinal(i))
		}
	}
	b.wantClaims(run, want...)

	req.Order = &workqueue.RunOrder{Rule: order.Rule{By: "v", Values: []string{"a", "b"}}}
	b.wantClaims(b.loadLines(req, "a", "b", "a"), 0, 1)
	_, err := b.TryLoad(req, valued("a", "x"))
	wrong, ok := errors.AsType[*start.ItemOrderError](err)
	const says = `line 3, key "C1": order_by v: "x" is none`
	if !ok || wrong.Line != 3 || wrong.Key != "C1" || !strings.Contains(err.Error(), says) {
		t.Errorf("a value that is not listed: %v", err)
	}
	testenv.Same(t, b.Number(`SELECT count(*) FROM run_order`), 2, "runs have an order after one was refused")
	b.Check()
}

func TestWhatDoesNotGoWithAnOrderIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for name, change := range map[string]func(*start.LoadRequest){
		"a canary": func(r *start.LoadRequest) { r.Canary = 1 },
		"a barrier": func(r *start.LoadRequest) {
			r.Steps = storetest.Planned(storetest.Need("a"), storetest.Barrier(storetest.Need("b", 0))).Steps
		},
		"optional": func(r *start.LoadRequest) {
			r.Steps = storetest.Planned(storetest.Need("a"), storetest.Optional(storetest.Need("b", 0))).Steps
		},
		"order_by":       func(r *start.LoadRequest) { r.Order.Rule.By = "" },
		"no field \"v\"": func(*start.LoadRequest) {},
	} {
		req := storetest.Request()
		req.Order = byValue(true)
		change(&req)
		_, err := b.TryLoad(req, storetest.Keys("k"))
		testenv.Says(t, err, name, "%s", name)
	}
	run := b.loadLines(storetest.Request(), "a", "a")
	b.Record(storetest.Except(storetest.Whole(b.wantClaims(run, 0)[0]), 0))
	_, err := redo.New(b.Store).Rerun(t.Context(), redo.RerunRequest{Run: run, Actor: "test", Canary: 1,
		Select: redo.Selection{Failed: true}})
	b.WantRefused(err, "order_by", "canary")
}

// A lane that no one moved on stands until the leader sees that nothing else is left.
func TestALostFollowerIsFound(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.loadLines(storetest.Request(), "a", "a", "b", "b")
	b.Record(storetest.Wholes(b.wantClaims(run, 0, 2))...)
	if n, err := redo.New(b.Store).RepairLanes(t.Context(), b.Lead()); n != 0 || err != nil {
		t.Fatalf("moved on %d lanes of a run that continues, %v", n, err)
	}
	// As if a node had recorded the heads that knows of no lanes.
	b.Exec(`UPDATE work_block SET held = ready, ready = B'0'::bit(8192) WHERE run_id = $1`, run)
	b.Exec(`UPDATE work_lane SET head = head - 1 WHERE run_id = $1`, run)
	report, err := doctor.New(b.Store).Doctor(t.Context())
	if err != nil || report.Found == 0 || report.Violations[0].Invariant != doctor.OneOfALane {
		t.Errorf("the doctor found %v, %v", report.Violations, err)
	}
	if n, err := redo.New(b.Store).RepairLanes(t.Context(), b.Lead()); n != 2 || err != nil {
		t.Fatalf("moved on %d lanes, %v; want 2", n, err)
	}
	b.Check()
	b.Record(storetest.Wholes(b.wantClaims(run, 1, 3))...)
	b.WantState(run, "completed", 1)
	b.Check()
}

// Whether items are added before or after the last one of their lane is recorded, someone sees the other.
func TestAddsAndRecordsDoNotMissEachOther(t *testing.T) {
	t.Parallel()
	for _, adderFirst := range []bool{true, false} {
		t.Run(fmt.Sprint("the adder first ", adderFirst), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run := b.OpenRun(func(r *start.OpenRequest) {
				r.LoadRequest = storetest.Chunked(8192)
				r.Session, r.Order = b.Session, byValue(false)
			})
			values := make([]string, 8192)
			for i := range values {
				values[i] = fmt.Sprint(i)
			}
			b.addValued(run, 0, values...)
			b.addValued(run, 8192, "7", "7", "x")
			head := b.Claim(run, storetest.Plenty)
			last, others := storetest.Whole(head[0]), storetest.Wholes(head)
			last.Slots, others[0].Slots = last.Slots[7:8], slices.Delete(others[0].Slots, 7, 8)
			b.Record(others...) // so that the transaction that waits has little to do
			ends := make(chan error, 2)
			add := func() {
				_, err := start.New(b.Store).SealRun(b.Context(), start.SealRequest{Run: run, Actor: "ann"})
				ends <- err
			}
			record := func() {
				_, err := settle.New(b.Store).Record(b.Context(), []settle.Answer{last})
				ends <- err
			}
			first, second := record, add
			if adderFirst {
				first, second = add, record
			}
			release := b.HoldRows(`SELECT 1 FROM work_lane WHERE run_id = $1 AND head = 7 FOR UPDATE`, run)
			go first()
			b.Until("the first waits for the lane", func() bool { return b.Waiters() == 1 })
			go second()
			b.Until("the second waits for the lane", func() bool { return b.Waiters() == 2 })
			release()
			for range 2 {
				testenv.NoError(t, <-ends)
			}
			b.Check()
			next := b.wantClaims(run, 8192, 8194)
			b.Record(storetest.Wholes(next)...)
			b.Record(storetest.Whole(b.wantClaims(run, 8193)[0]))
			b.WantState(run, "completed", 1)
			b.Check()
		})
	}
}

func (b *bench) addValued(run workqueue.RunID, first int, values ...string) {
	b.Helper()
	testenv.Must(start.New(b.Store).Add(b.Context(), start.AddRequest{Run: run, Actor: "ann",
		Items: func() (func(*start.LoadItem) error, error) { return valuedFrom(first, values...), nil }}))(b)
}

func TestExplainNamesTheItemInFront(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.loadLines(storetest.Request(), "a", "a", "a", "b")
	e := testenv.Must(health.New(b.Store).Explain(t.Context(), run))(t)
	found := false
	for _, g := range e.Groups {
		found = found || g.Reason == health.ReasonLane && g.Items == 2 && g.State == "held"
	}
	if !found {
		t.Errorf("no group of two items that wait in their lane: %+v", e.Groups)
	}
	e, err := health.New(b.Store).ExplainKey(t.Context(), run, "C2")
	if err != nil || len(e.Groups) != 1 || !strings.Contains(e.Groups[0].Why, `"C0"`) {
		t.Errorf("why C2 waits: %+v, %v", e.Groups, err)
	}
	view, err := inspect.New(b.Store).Run(t.Context(), run)
	if err != nil || view.Order == nil || view.Order.By != "v" || view.Order.OnFailure != "continue" {
		t.Errorf("the run shows order %+v, %v", view.Order, err)
	}
}

// A load of several batches that fails is undone with its lanes.
func TestALoadWithLinesIsTakenBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := storetest.Request()
	req.Order = byValue(false)
	values := make([]string, storetest.Several)
	for i := range values {
		values[i] = fmt.Sprint(i % 100)
	}
	next := valued(values...)
	_, err := b.TryLoad(req, func(item *start.LoadItem) error {
		err := next(item)
		if item.Key == "C32900" {
			item.Payload = []byte(`{"v":null}`)
		}
		return err
	})
	testenv.Same(t, testenv.As[*start.ItemOrderError](t, err, "an item without a value").Line, 32_902, "its line")
	b.WantNothing()
	testenv.Same(t, b.Number(`SELECT count(*) FROM work_order`), 0, "rows of work_order are left")
}

// An item stays in the line that it stands in.
func TestACorrectionLeavesItemsInTheirLines(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.loadLines(storetest.Chunked(10), "a", "b", "a")
	key := func(i int) (key, payload string) {
		err := b.Pool.QueryRow(t.Context(), `SELECT item_key, payload FROM work_queue WHERE run_id = $1 AND ordinal = $2`,
			run, i).Scan(&key, &payload)
		testenv.NoError(t, err)
		return key, payload
	}
	first, payload := key(0)
	_, other := key(1)
	_, err := redo.New(b.Store).Correct(t.Context(), redo.CorrectRequest{Run: run, Actor: "ann",
		Items: storetest.Corrections(other, first)})
	b.WantSaid(err, "order_by", "elsewhere")
	b.Finish(run)
	b.Correct(run, strings.TrimSuffix(payload, "}")+`,"x":1}`, first)
	b.Finish(run)
	b.WantState(run, "completed", 2)
	b.Check()
}

// A request has items of several lanes only where very many lanes have one ready, in whatever block: it would hold up
// what stands behind them until the slowest is done.
func TestLanesDoNotShareRequests(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lanes := func(n int) (values []string) {
		for i := range n {
			values = append(values, fmt.Sprint("v", i))
		}
		return values
	}
	req := storetest.Chunked(500)
	for _, c := range []struct{ lanes, most, requests int }{{100, 1, 100}, {1000, 15, 67}, {8192 + 20, 128, 64 + 1}} {
		run := b.loadLines(req, lanes(c.lanes)...)
		claimed := b.ClaimStep(run, 0, storetest.Plenty).Slices
		testenv.Same(t, len(claimed), c.requests, "requests of %d lanes", c.lanes)
		for _, s := range claimed {
			if n := len(storetest.Ordinals(s)); n > c.most {
				t.Errorf("of %d lanes a request has %d", c.lanes, n)
			}
		}
	}
	req.Order = byValue(false)
	req.Order.Rule.Partitions = 2
	run := b.loadLines(req, lanes(20)...)
	slow := b.Claim(run, 1)[0]
	for range 40 {
		b.Record(storetest.Wholes(b.Claim(run, 1))...)
	}
	rest := b.Number(`SELECT count(*) FROM work_order WHERE run_id = $1 AND lane = (SELECT lane FROM work_order
		WHERE run_id = $1 AND ordinal = $2)`, run, storetest.Ordinals(slow)[0])
	b.WantTally(run, storetest.Tally{Done: 20 - rest, Live: 1})

	items, err := inspect.New(b.Store).Items(t.Context(), run, "C0")
	if err != nil || len(items) != 1 || b.Number(`SELECT count(*) FROM run_item i JOIN work_order o USING (run_id, ordinal)
		WHERE run_id = $1 AND i.lane = o.lane AND ordinal = 0 AND o.lane::text = $2`, run, items[0].Lane) != 1 {
		t.Errorf("item C0 is %+v, %v; want it with its lane", items, err)
	}
}

// Nodes that claim and record side by side, among them some that die, hand out every value in order, and miss nothing.
func TestNodesSideBySideKeepTheOrder(t *testing.T) {
	t.Parallel()
	const items, lanes, nodes = 240, 40, 3
	b := setup(t)
	values := make([]string, items)
	for i := range values {
		values[i] = fmt.Sprint(i * i % lanes)
	}
	run := b.loadLines(storetest.Chunked(10), values...)
	var mu sync.Mutex
	last, busy := map[string]workqueue.Ordinal{}, map[string]bool{}
	var wrong []string
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	var group sync.WaitGroup
	for range nodes {
		group.Go(func() {
			for ctx.Err() == nil {
				claimed, err := dispatch.New(b.Store).Claim(ctx, b.ClaimRequest(run, 2))
				if errors.Is(err, workqueue.ErrBusy) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				mu.Lock()
				for _, s := range claimed.Slices {
					for _, item := range storetest.Ordinals(s) {
						v := values[item]
						if before, had := last[v]; busy[v] || had && before >= item {
							wrong = append(wrong, fmt.Sprintf("item %d after %d (in progress: %v)", item, before, busy[v]))
						}
						last[v], busy[v] = item, true
					}
				}
				mu.Unlock()
				for _, s := range claimed.Slices {
					mu.Lock()
					for _, item := range storetest.Ordinals(s) { // from here on someone may see that it is final
						busy[values[item]] = false
					}
					mu.Unlock()
					if _, err := settle.New(b.Store).Record(ctx, []settle.Answer{storetest.Whole(s)}); err != nil {
						t.Error(err)
						return
					}
				}
				if state, _ := b.State(run); state == "completed" {
					return
				}
			}
		})
	}
	group.Wait()
	if len(wrong) > 0 {
		t.Errorf("%d times out of order: %v", len(wrong), wrong[0])
	}
	b.WantState(run, "completed", 1)
	b.Check()
}

// The leader ends what waits in stopped lanes of every run, although it cannot for one.
func TestARunWhoseStoppedLinesCannotBeEndedKeepsNoOther(t *testing.T) {
	t.Parallel()
	b := setup(t)
	stopped := func() workqueue.RunID {
		req := storetest.Request()
		req.Order = byValue(true)
		run := b.loadLines(req, "a", "a", "a")
		b.Record(storetest.Except(storetest.Whole(b.wantClaims(run, 0)[0]), 0))
		return run
	}
	first, second := stopped(), stopped()
	b.Exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$`)
	b.Exec(fmt.Sprintf(`CREATE TRIGGER refuse BEFORE INSERT ON work_slice FOR EACH ROW WHEN (NEW.run_id = '%s')
		EXECUTE FUNCTION refuse()`, first))
	n, err := settle.New(b.Store).EndStopped(t.Context(), b.Lead())
	if n != 2 || err == nil || !strings.Contains(err.Error(), "not this one") {
		t.Errorf("ended %d items, %v; want those 2 of the second run, and the error of the first", n, err)
	}
	b.WantState(second, "completed", 1)
	b.Exec(`DROP TRIGGER refuse ON work_slice`)
	if n, err := settle.New(b.Store).EndStopped(t.Context(), b.Lead()); n != 2 || err != nil {
		t.Errorf("then ended %d items, %v; want 2", n, err)
	}
	b.WantState(first, "completed", 1)
	b.Check()
}

// stand takes the heads of a run's lanes away from where they can be claimed: it is at rest, and its lanes have heads.
func (b *bench) stand(run workqueue.RunID) {
	b.Helper()
	b.Exec(`UPDATE work_block SET ready = B'0'::bit(8192) WHERE run_id = $1`, run)
}

// A run at rest whose lanes need no help keeps neither the runs after it nor, however many lanes it has, those of its
// lanes that do need it.
func TestLinesThatStandAreFoundBehindOthersThatDoNot(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.stand(b.loadLines(storetest.Request(), "a", "a"))

	const lanes = 2500
	var values []string
	for i := range lanes {
		values = append(values, fmt.Sprint(i), fmt.Sprint(i))
	}
	many := b.loadLines(storetest.Request(), values...)
	b.stand(many)
	b.Exec(`UPDATE work_lane SET head = NULL WHERE run_id = $1
		AND lane IN (SELECT lane FROM work_lane WHERE run_id = $1 ORDER BY lane DESC LIMIT 3)`, many)

	last := b.loadLines(storetest.Request(), "a", "a")
	b.stand(last)
	b.Exec(`UPDATE work_lane SET head = NULL WHERE run_id = $1`, last)

	if n, err := redo.New(b.Store).RepairLanes(t.Context(), b.Lead()); n != 4 || err != nil {
		t.Fatalf("moved on %d lanes, %v; want 3 and 1", n, err)
	}
	b.wantClaims(last, 1)
}
