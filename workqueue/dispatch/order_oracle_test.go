package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/doctor"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// ledger is what the services of a run have seen, and knows nothing of planes or lanes: which items they were handed,
// in which order. It judges each hand-out by the tracker, which says what is not final yet.
type ledger struct {
	values []string // by ordinal

	// out is what is with a service. begun is the last item of each value that was handed out, and turn one that was
	// between two steps when others were taken back.
	out         map[workqueue.Ordinal]map[workqueue.Step]workqueue.SliceID
	begun, turn map[string]workqueue.Ordinal
	seen        map[workqueue.Ordinal]bool // was handed out at some time
	wrong       []string
}

func newLedger(values []string) *ledger {
	return &ledger{values: values, out: map[workqueue.Ordinal]map[workqueue.Step]workqueue.SliceID{},
		begun: map[string]workqueue.Ordinal{}, turn: map[string]workqueue.Ordinal{}, seen: map[workqueue.Ordinal]bool{}}
}

func (l *ledger) fault(format string, args ...any) {
	l.wrong = append(l.wrong, fmt.Sprintf(format, args...))
}

// handOut notes that a service was handed a slice. pending are the items that are not final.
func (l *ledger) handOut(s workqueue.Slice, pending []bool) {
	seen := map[string]bool{}
	for _, item := range storetest.Ordinals(s) {
		v := l.values[item]
		l.seen[item] = true
		if seen[v] {
			l.fault("two items of %s in one request", v)
		}
		seen[v] = true
		for other, steps := range l.out {
			if other != item && l.values[other] == v && len(steps) > 0 {
				l.fault("items %d and %d of %s at once", other, item, v)
			}
		}
		if head, going := l.begun[v]; going && head != item && pending[head] {
			l.fault("item %d of %s, while %d has not ended", item, v, head)
		} else if turn, has := l.turn[v]; (!going || head != item) && (!has || turn != item) {
			for before := range item {
				if pending[before] && l.values[before] == v {
					l.fault("item %d of %s, before %d", item, v, before)
				}
			}
		}
		l.begun[v] = item
		delete(l.turn, v)
		if l.out[item] == nil {
			l.out[item] = map[workqueue.Step]workqueue.SliceID{}
		}
		l.out[item][s.Step] = s.ID
	}
}

// back notes that a slice is with no service any more.
func (l *ledger) back(s workqueue.Slice) {
	for _, item := range storetest.Ordinals(s) {
		if l.out[item][s.Step] == s.ID {
			delete(l.out[item], s.Step)
		}
	}
}

// takenBack notes that steps of items are to be done again. What was in progress at one of them may be another's turn.
func (l *ledger) takenBack(items []workqueue.Ordinal, steps ...workqueue.Step) {
	for _, item := range items {
		for _, s := range steps {
			delete(l.out[item], s)
		}
		if v := l.values[item]; l.begun[v] == item && len(l.out[item]) == 0 {
			delete(l.begun, v)
		}
	}
}

// ordering is a run under all that can happen to it.
type ordering struct {
	*bench
	*ledger

	rand  *rand.Rand
	run   workqueue.RunID
	steps int
	stop  bool
	held  []workqueue.Slice // by services
}

func (o *ordering) pending() []bool {
	o.Helper()
	all := make([]bool, len(o.values))
	pending, err := pg.Collect(o.Context(), o.Pool, pgx.RowTo[int],
		`SELECT i FROM generate_series(0, $2::int - 1) i JOIN tracker_group g
		ON g.batch_id = $1 AND g.grp = 0 AND get_bit(g.pending, i) = 1`, o.run, len(all))
	if err != nil {
		o.Fatal(err)
	}
	for _, i := range pending {
		all[i] = true
	}
	return all
}

func (o *ordering) take() {
	step := workqueue.Step(o.rand.IntN(o.steps))
	claimed := o.ClaimStep(o.run, step, 1+o.rand.IntN(3)).Slices
	if len(claimed) == 0 {
		return
	}
	pending := o.pending()
	for _, s := range claimed {
		o.handOut(s, pending)
		o.held = append(o.held, s)
	}
}

// answer has a service answer one of its requests, well or badly; one answer in ten comes twice.
func (o *ordering) reply() {
	if len(o.held) == 0 {
		return
	}
	i := o.rand.IntN(len(o.held))
	s := o.held[i]
	o.held = slices.Delete(o.held, i, i+1)
	a := storetest.Whole(s)
	for j := range a.Slots {
		switch p := o.rand.IntN(20); {
		case p < 2:
			a.Slots[j].Result, a.Slots[j].Err = nil, &workqueue.SlotError{Code: "bad", Message: "no"}
		case p < 6:
			a.Slots[j].Result, a.Slots[j].Err = nil, &workqueue.SlotError{Code: "later", Message: "no", Retry: true}
		}
	}
	o.back(s)
	o.Record(a)
	if o.rand.IntN(10) == 0 {
		o.Record(a)
	}
}

// die has the node die: what it had claimed is reissued, and services may be at it still.
func (o *ordering) die() {
	o.Expire(o.Session)
	o.Session = o.bench.Open()
	if _, err := settle.New(o.Store).ReleaseDeadSessions(o.Context(), o.lead()); err != nil {
		o.Fatal(err)
	}
	for _, s := range o.held {
		o.back(s)
	}
	if o.rand.IntN(2) == 0 { // else their answers come, and are too late
		o.held = nil
	}
}

func (o *ordering) lead() workqueue.Lease {
	o.Exec(`UPDATE leader SET expires_at = tranche_now()`)
	return o.bench.Lead()
}

// again takes back some items at a step, or what failed.
func (o *ordering) again() {
	if state, _ := o.State(o.run); state == "cancelled" {
		return
	}
	var keys []string
	var items []workqueue.Ordinal
	for range 1 + o.rand.IntN(5) {
		if i := o.rand.IntN(len(o.values)); !slices.Contains(items, workqueue.Ordinal(i)) {
			keys, items = append(keys, fmt.Sprint("C", i)), append(items, workqueue.Ordinal(i))
		}
	}
	before := o.pending()
	for v, item := range o.begun {
		if !before[item] {
			delete(o.begun, v) // it has ended, and may begin again
		}
	}
	step := o.rand.IntN(o.steps)
	after := []workqueue.Step{workqueue.Step(step)}
	if o.steps == 3 && step < 2 {
		after = append(after, 2) // the third needs both others
	}
	var err error
	if o.rand.IntN(3) == 0 {
		_, err = redo.New(o.Store).Rerun(o.Context(), redo.RerunRequest{Run: o.run, Actor: "test",
			Select: redo.Selection{Failed: true}})
	} else {
		_, err = redo.New(o.Store).Reset(o.Context(), redo.ResetRequest{Run: o.run, Actor: "test",
			Select: redo.Selection{Step: fmt.Sprint("s", step), Keys: keys}})
		if err == nil {
			o.takenBack(items, after...)
		}
	}
	if err == nil && o.steps > 1 {
		o.readTurns()
	}
	if err != nil && !strings.Contains(err.Error(), "nothing") && !strings.Contains(err.Error(), "no item") {
		o.Fatal(err)
	}
}

// readTurns notes whose turn it is in lanes that someone was at when items before were taken back: of several steps,
// services do not see whether an item is between two of them.
func (o *ordering) readTurns() {
	rows, err := o.Pool.Query(o.Context(), `SELECT head FROM work_lane WHERE run_id = $1 AND head IS NOT NULL`, o.run)
	if err != nil {
		o.Fatal(err)
	}
	heads, err := pgx.CollectRows(rows, pgx.RowTo[workqueue.Ordinal])
	if err != nil {
		o.Fatal(err)
	}
	for _, head := range heads {
		o.turn[o.values[head]] = head
	}
}

func (o *ordering) act() {
	switch p := o.rand.IntN(40); {
	case p < 18:
		o.take()
	case p < 34:
		o.reply()
	case p < 35:
		o.die()
	case p < 37:
		o.again()
	case o.stop:
		if _, err := settle.New(o.Store).EndStopped(o.Context(), o.lead()); err != nil {
			o.Fatal(err)
		}
	}
}

// end works off what is left, and wants the run to complete without anybody finding a lane that stands.
func (o *ordering) end() {
	o.held = nil
	o.Expire(o.Session)
	o.Session = o.bench.Open()
	if _, err := settle.New(o.Store).ReleaseDeadSessions(o.Context(), o.lead()); err != nil {
		o.Fatal(err)
	}
	o.out = map[workqueue.Ordinal]map[workqueue.Step]workqueue.SliceID{}
	for range 100 * o.steps * len(o.values) {
		moved := false
		for step := range workqueue.Step(o.steps) {
			for _, s := range o.ClaimStep(o.run, step, storetest.Plenty).Slices {
				o.handOut(s, o.pending())
				o.back(s)
				o.Record(storetest.Whole(s))
				moved = true
			}
		}
		if _, err := settle.New(o.Store).EndStopped(o.Context(), o.lead()); err != nil {
			o.Fatal(err)
		}
		if state, _ := o.State(o.run); state == "completed" {
			return
		}
		if !moved {
			n, err := redo.New(o.Store).RepairLanes(o.Context(), o.lead())
			o.Fatalf("the run stands; %d lanes could be moved on, %v: %s", n, err, o.Dump(o.run))
		}
	}
	o.Fatal("the run does not end")
}

// Whatever happens to a run, a service is never handed two items of a value at once, nor one before those that come
// earlier and have not ended.
func TestServicesSeeEachValueInOrder(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		steps []workqueue.StepSpec
		stop  bool
	}{
		"one step":            {[]workqueue.StepSpec{storetest.Need("s0")}, false},
		"one step that stops": {[]workqueue.StepSpec{storetest.Need("s0")}, true},
		"three steps": {[]workqueue.StepSpec{storetest.Need("s0"), storetest.Need("s1"), storetest.Need("s2", 0, 1)},
			false},
		"three that stop": {[]workqueue.StepSpec{storetest.Need("s0"), storetest.Need("s1"), storetest.Need("s2", 0, 1)},
			true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOrdering(t, tc.steps, tc.stop)
			for i := range 160 {
				o.act()
				if i%20 == 19 {
					o.Check()
				}
				if len(o.wrong) > 0 || t.Failed() {
					t.Fatalf("after %d actions: %v", i, o.wrong)
				}
			}
			o.end()
			o.Check()
			for item := range o.values {
				if i := workqueue.Ordinal(item); !o.seen[i] && !o.wasStopped(i) {
					t.Errorf("item %d was never handed out, and nothing stopped it", i)
				}
			}
			if len(o.wrong) > 0 {
				t.Error(o.wrong)
			}
		})
	}
}

// wasStopped reports whether an item has ended because another of its lane failed.
func (o *ordering) wasStopped(item workqueue.Ordinal) bool {
	return o.Number(`SELECT count(*) FROM work_result WHERE run_id = $1 AND ordinal = $2 AND error_code = $3`, o.run, item,
		workqueue.CodeStopped) > 0
}

func newOrdering(t *testing.T, steps []workqueue.StepSpec, stop bool) *ordering {
	t.Helper()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	o := &ordering{bench: setup(t), rand: rand.New(rand.NewPCG(seed, 0)), steps: len(steps), stop: stop}
	values := make([]string, 60)
	for i := range values {
		values[i] = fmt.Sprint("v", o.rand.IntN(7))
	}
	o.ledger = newLedger(values)
	req := storetest.Planned(steps...)
	for i := range req.Steps {
		req.Steps[i].MaxAttempts = 3
	}
	req.Order = byValue(stop)
	o.run = o.loadLines(req, values...)
	return o
}

// The ledger, and the doctor, see a lane of which someone lets two go.
func TestTheLedgerSeesTwoOfAValue(t *testing.T) {
	t.Parallel()
	o := newOrdering(t, []workqueue.StepSpec{storetest.Need("s0")}, false)
	o.Exec(`UPDATE work_block SET ready = ready | held, held = NULL WHERE run_id = $1`, o.run)
	report, err := doctor.New(o.Store).Doctor(t.Context())
	if err != nil || report.Found == 0 || report.Violations[0].Invariant != doctor.OneOfALane {
		t.Errorf("the doctor found %v, %v", report.Violations, err)
	}
	for range 20 {
		o.take()
	}
	if len(o.wrong) == 0 {
		t.Error("the ledger saw nothing wrong")
	}
}

// Nodes that claim and record side by side, among them some that die, hand out every value in order, and miss nothing.
func TestNodesSideBySideKeepTheOrder(t *testing.T) {
	t.Parallel()
	const items, lanes, nodes = 600, 40, 3
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
