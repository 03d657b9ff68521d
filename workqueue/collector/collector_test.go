package collector_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/collector"
	pacestore "github.com/tranchehq/tranche/workqueue/pace"
)

func TestKeysAreFlushedByNumberByAgeAndWhenDrained(t *testing.T) {
	t.Parallel()
	c := collect(t, gatherOps())
	c.add("k", "a")
	c.none("it has fewer than min_size, none of them old")
	c.add("k", "b", "c", "d", "e")
	first := c.one("a", "b", "c") // max_size
	c.none("its key is being flushed")
	c.record(first, nil)
	c.record(c.one("d", "e"), nil)
	testenv.Same(t, c.Number(`SELECT count(*) FROM collector_key`), 0, "keys are there that have nothing")
	c.add("k", "f")
	c.none("f is young")
	c.Exec(`UPDATE collector_key SET due_at = due_at - interval '1 hour'`)
	c.record(c.one("f"), nil)
	c.add("k", "g")
	out, err := collector.New(c.Store).DrainCollector(t.Context(), "c", "ann")
	if err != nil || out.Keys != 1 || out.Ops != 1 {
		t.Fatalf("drained %+v, %v", out, err)
	}
	c.record(c.one("g"), nil)
	c.add("k", "h")
	c.none("it was added after the drain")
	spec := gatherOps()
	spec.MinSize = 1
	c.apply(spec) // sets the times of what waits
	c.record(c.one("h"), nil)
}

func TestIdsAreRememberedByAllWhoAdd(t *testing.T) {
	t.Parallel()
	c := collect(t, gatherOps())
	ops := func(from int) (ops []collector.Op) {
		for i := range 50 {
			n := (from*13 + i*7) % 60
			ops = append(ops, collector.Op{ID: fmt.Sprint("op", n), Key: fmt.Sprint("k", n%5), Payload: []byte(`1`)})
		}
		return ops
	}
	var mu sync.Mutex
	var all sync.WaitGroup
	added, given := 0, 0
	for p := range 8 {
		all.Go(func() {
			out, _, err := collector.New(c.Store).AddOps(t.Context(), "c", 1, [][]collector.Op{ops(p), ops(p + 1)})
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			for _, o := range out {
				added, given = added+o.Added, given+o.Added+o.Duplicates
			}
		})
	}
	all.Wait()
	if n := c.Number(`SELECT count(*) FROM collector_op`); added != n || added != 60 || given != 800 {
		t.Errorf("%d of %d were added by their accounts, and %d are there; there are 60 ids", added, given, n)
	}
	c.Check()
	known := c.addOps(collector.Op{ID: "op3", Key: "other", Payload: []byte(`2`)}, collector.Op{Key: "other"},
		collector.Op{Key: "other"})
	if known.Added != 2 || known.Duplicates != 1 || !slices.Equal(known.Known, []string{"op3"}) {
		t.Errorf("added %+v; two have no id and are taken, one is known", known)
	}
	c.record(c.one1("other"), nil)
	testenv.Same(t, c.add("other", "op3").Duplicates, 1, "added")
	// Forgotten is what was done long ago; what is still there is not.
	c.add("last", "x", "y")
	c.Exec(`DELETE FROM collector_op WHERE op_id = 'y'`)
	c.Exec(`UPDATE collector_seen SET at = at - interval '25 hours' WHERE op_id IN ('x', 'y')`)
	lease := c.Lead()
	testenv.Same(t, testenv.Must(collector.New(c.Store).SweepCollectors(t.Context(), lease))(t).Forgotten, 2, "swept")
	if again := c.add("last", "x", "y"); again.Added != 1 || again.Duplicates != 1 {
		t.Errorf("added %+v; y was forgotten and x is still there", again)
	}
}

// one1 claims everything and returns the flush of a key.
func (c *opsBench) one1(key string) *flushOf {
	c.Helper()
	for _, f := range c.claimAll() {
		if f.end.Flush.Key == key {
			return f
		}
	}
	c.Fatalf("key %s is not flushed", key)
	return nil
}

func TestKeysMadeOtherwiseWaitForThoseBefore(t *testing.T) {
	t.Parallel()
	spec := gatherOps()
	spec.OrderBy, spec.NoRetryCodes = &collector.OpKeying{Field: "user", Partitions: 2}, []string{"deadline"}
	c := collect(t, spec)
	c.add("0/2", "a")
	c.add("1/2", "b")
	spec.OrderBy = &collector.OpKeying{Field: "user", Partitions: 3}
	if out := c.apply(spec); !out.Renumbered || out.Version != 2 {
		t.Fatalf("applied %+v", out)
	}
	var moved *collector.MovedError
	_, _, err := collector.New(c.Store).AddOps(t.Context(), "c", 1, [][]collector.Op{{{ID: "z", Key: "0/2"}}})
	if !errors.As(err, &moved) || moved.Newest != 2 {
		t.Errorf("keys of an older version: %v", err)
	}
	c.add("0/3", "c", "d")
	old := c.claimAll() // young and alone as they are
	if len(old) != 2 || old[0].end.Flush.KeyVersion != 1 || old[1].end.Flush.KeyVersion != 1 {
		t.Fatalf("claimed %v", flushedIDs(old))
	}
	c.record(old[0], map[string]workqueue.SlotError{old[0].end.Ops[0].ID: refused("bad")})
	c.none("a key of before is being flushed")
	c.record(old[1], nil)
	c.record(c.one("c", "d"), nil)
	testenv.Same(t, c.Number(`SELECT drained_key_version FROM collector`), 2, "drained_key_version is")
	c.add("0/3", "e", "f")
	requeue := func() *flushOf {
		testenv.Must(collector.New(c.Store).RequeueOps(t.Context(), "c", collector.OpsSelection{All: true}, "ann"))(t)
		return c.one(old[0].end.Ops[0].ID)
	}
	again := requeue()
	testenv.Same(t, again.end.Ops[0].Refusals, 1, "a service must take it for new work: refusals")
	c.fail(again, retried("deadline"))
	again = requeue()
	testenv.Same(t, again.end.Ops[0].Refusals, 1, "the service may have executed it: refusals")
	c.record(again, nil)
	c.record(c.one("e", "f"), nil)
}

func TestUrgentOperationsGoFirst(t *testing.T) {
	t.Parallel()
	spec := gatherOps()
	spec.Order, spec.InFlight = collector.OrderPriority, 1
	c := collect(t, spec)
	for key, priority := range map[string]int{"low": 1, "high": 9, "mid": 4} {
		c.addOps(collector.Op{ID: key + "-a", Key: key, Priority: 0},
			collector.Op{ID: key + "-b", Key: key, Priority: priority})
	}
	for _, key := range []string{"high", "mid", "low"} {
		c.record(c.one(key+"-b", key+"-a"), nil)
	}
}

func TestPausedAndDeletedCollectors(t *testing.T) {
	t.Parallel()
	c := collect(t, gatherOps())
	ctx, of := t.Context(), collector.New(c.Store)
	c.add("k", "a", "b")
	if out, err := of.SetCollector(ctx, "c", workqueue.DocumentPaused, false, "ann"); err != nil || out.Unchanged {
		t.Fatal(out, err)
	}
	c.none("it is paused")
	testenv.Same(t, len(testenv.Must(of.DueCollectors(ctx))(t)), 0, "due")
	c.add("k", "c")
	if out, err := of.SetCollector(ctx, "c", workqueue.DocumentActive, false, "ann"); err != nil || out.Unchanged {
		t.Fatal(out, err)
	}
	late := c.one("a", "b", "c")
	if out, err := of.SetCollector(ctx, "c", workqueue.DocumentDeleted, true, "ann"); err != nil || out.Waiting != 3 {
		t.Fatalf("deleted %+v, %v", out, err)
	}
	_, _, err := of.AddOps(ctx, "c", 0, [][]collector.Op{{{Key: "k"}}})
	testenv.Is(t, err, workqueue.ErrNotFound, "added to a collector that was deleted")
	lease := c.Lead()
	for more := true; more; {
		more = testenv.Must(of.SweepCollectors(ctx, lease))(t).More
	}
	testenv.Same(t, c.Number(`SELECT (SELECT count(*) FROM collector) + (SELECT count(*) FROM collector_key)
		+ (SELECT count(*) FROM collector_op) + (SELECT count(*) FROM collector_seen)`), 0, "rows are left")
	if out, err := of.RecordFlushes(ctx, []collector.FlushEnd{late.end}); err != nil || !out[0].Stale {
		t.Errorf("recorded %+v, %v", out, err)
	}
}

func TestFlushesKeepToRatesAndBudgets(t *testing.T) {
	t.Parallel()
	spec := gatherOps()
	spec.Rate, spec.MinSize = "5/h", 1
	c := collect(t, spec)
	for i := range 10 {
		c.add(fmt.Sprint("k", i), fmt.Sprint("a", i))
	}
	calls := func(seconds float64) (n int) {
		testenv.Advance(c, c.Pool, time.Duration(seconds*float64(time.Second)))
		for _, f := range c.claimAll() {
			c.record(f, nil)
			n++
		}
		return n
	}
	for i, step := range []struct {
		seconds float64
		calls   int
	}{{0, 1}, {0, 0}, {600, 0}, {150, 1}, {36_000, 1}, {750, 1}} {
		testenv.Same(t, calls(step.seconds), step.calls, "step %d: calls after %gs; one each 720s, and none are saved up", i,
			step.seconds)
	}
	spec.Rate = ""
	c.apply(spec)
	set := func(change pacestore.EndpointChange) {
		t.Helper()
		change.Endpoint = storetest.Endpoint
		testenv.Must(pacestore.New(c.Store).ChangeEndpoint(t.Context(), change, "ann"))(t)
	}
	rate, budget := 0.001, 2
	set(pacestore.EndpointChange{RequestRate: &rate})
	testenv.Same(t, calls(0), 1, "calls by the endpoint's rate of calls")
	testenv.Same(t, calls(0), 0, "more")
	rate = 0
	set(pacestore.EndpointChange{RequestRate: &rate, MaxInFlight: &budget})
	testenv.Same(t, len(c.claimAll()), 2, "flushes within a budget of 2")
	c = collect(t, gatherOps())
	for i := range 5 {
		c.add(fmt.Sprint("k", i), fmt.Sprint("a", i), fmt.Sprint("b", i), fmt.Sprint("c", i))
	}
	rate = 4
	set(pacestore.EndpointChange{Rate: &rate})
	n := 0
	for _, f := range c.claimAll() {
		n += len(f.end.Ops)
	}
	if n == 0 || n > 4 {
		t.Errorf("%d operations are claimed together, at 4 a second", n)
	}
}

// However many keys others have in progress, a collector with few of its own finds room, and no place is given twice.
func TestFlushRoomIsKeptForOthers(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ all, own, want int }{
		{0, 0, 96},
		{40, 40, 56},
		{95, 95, 1},
		{96, 96, 0},
		{100, 4, 0},
		{96, 0, 4},
		{98, 2, 2},
		{126, 0, 2},
		{128, 0, 0},
		{128, 128, 0},
	} {
		testenv.Same(t, max(collector.FlushRoom(tc.all, tc.own), 0), max(tc.want, 0),
			"room beside %d keys, %d of them its own", tc.all, tc.own)
	}
}

// Keys that fail whenever they are tried are always due before one that was added later. It goes first anyway.
func TestKeysThatFailDoNotHoldUpOthers(t *testing.T) {
	t.Parallel()
	c := collect(t, gatherOps())
	for i := range 4 {
		c.add(fmt.Sprint("bad", i), fmt.Sprint("a", i), fmt.Sprint("b", i))
	}
	for range 4 {
		c.wait()
		for _, f := range c.claimAll() {
			c.fail(f, retried("bad_reply"))
		}
	}
	c.add("good", "x", "y")
	c.Exec(`UPDATE collector SET backoff_until = NULL`)
	c.Exec(`UPDATE collector_key SET held_until = NULL, due_at = oldest_at`)
	c.record(c.one("x", "y"), nil)
	c.Exec(`UPDATE collector_key SET held_until = NULL, due_at = oldest_at`)
	testenv.Same(t, len(c.claimAll()), 4, "flushes once one has come through")
}

// A flush of an older key version is waited for also when its operations are dropped in progress.
func TestDroppedOperationsUnderWayAreWaitedFor(t *testing.T) {
	t.Parallel()
	c := collect(t, gatherOps())
	c.add("old", "x", "y")
	f := c.one("x", "y")
	spec := gatherOps()
	spec.OrderBy = &collector.OpKeying{Field: "n"}
	c.apply(spec)
	c.add("1", "u", "v")
	n := testenv.Must(collector.New(c.Store).DropOps(t.Context(), "c",
		collector.OpsSelection{All: true, Waiting: true, Keys: []string{"old"}}, "ann"))(t)
	testenv.MustSame(t, n, 2, "dropped")
	for range 2 {
		c.none("x and y are at work under their old key")
	}
	c.record(f, nil)
	c.one("u", "v")
}

// Dropping what blocks a key of a strict collector frees the key without waiting for its next try.
func TestADroppedOperationBlocksNothing(t *testing.T) {
	t.Parallel()
	spec := gatherOps()
	spec.Strict, spec.Backoff, spec.MaxBackoff = true, collector.Span(time.Hour), collector.Span(time.Hour)
	c := collect(t, spec)
	c.add("k", "a", "b", "c", "d", "e")
	c.record(c.one("a", "b", "c"), map[string]workqueue.SlotError{"a": retried("bad"), "b": retried("bad")})
	drop := func(id string) {
		t.Helper()
		n := testenv.Must(collector.New(c.Store).DropOps(t.Context(), "c",
			collector.OpsSelection{IDs: []string{id}, Waiting: true}, "ann"))(t)
		testenv.MustSame(t, n, 1, "dropped")
	}
	drop("a")
	for _, f := range c.claimAll() {
		testenv.Same(t, len(f.ids()), 0, "operations pass b")
		c.record(f, nil)
	}
	c.none("b blocks its key")
	drop("b")
	c.one("d", "e")
}
