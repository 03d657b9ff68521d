package collector_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// failKeys adds two operations to each of n keys, has them flushed and the flushes fail without a word of the service.
func (c *opsBench) failKeys(n int, e workqueue.SlotError) {
	c.Helper()
	for _, f := range c.flushKeys(n) {
		c.fail(f, e)
	}
}

// flushKeys adds two operations to each of n keys, and claims them.
func (c *opsBench) flushKeys(n int) []*flushOf {
	c.Helper()
	for i := range n {
		c.add(fmt.Sprint("k", i), fmt.Sprint("a", i), fmt.Sprint("b", i))
	}
	flushes := c.claimAll()
	testenv.MustSame(c, len(flushes), n, "flushes claimed")
	return flushes
}

// complain has the service say of a flush that it failed entirely.
func (c *opsBench) complain(f *flushOf, e workqueue.SlotError) {
	c.Helper()
	f.end.Replied, f.end.Refused = true, true
	c.fail(f, e)
}

func (c *opsBench) isOpen() bool {
	c.Helper()
	watched := testenv.Must(settle.New(c.Store).WatchedEndpoints(c.Context()))(c)
	change := c.Look(settle.FollowUp{Endpoints: watched}) // as the leader does, each second
	return change.Open
}

// Flushes that fail open the breaker of their endpoint: runs know of it, and the next flush is a probe of one
// operation. A collector that rests continues as soon as the breaker is closed.
func TestFlushesOpenAndCloseTheBreaker(t *testing.T) {
	t.Parallel()
	c := collect(t, gatherOps())
	since := time.Now()
	c.failKeys(6, retried(collector.CodeNoListeners))
	c.Stretch("collector", "backoff_until", since, time.Second)
	testenv.MustSame(t, c.isOpen(), true, "six keys found no one: the breaker is open")
	c.Exec(`UPDATE endpoint_pace SET probe_at = tranche_now() + interval '1 hour'`)
	run := c.Load(storetest.Chunked(1), 4)
	testenv.Same(t, len(c.Claim(run, 4)), 0, "slices that a run claimed before the first probe is due")
	v, err := collector.New(c.Store).Collector(t.Context(), "c")
	if err != nil || len(v.Why) != 2 || v.Why[1].Code != "breaker" || !strings.Contains(v.Why[1].Text, "is open since 2") {
		t.Fatalf("why: %+v, %v", v.Why, err)
	}
	c.wait()
	c.none("no probe is due yet")
	c.Exec(`UPDATE endpoint_pace SET probe_at = tranche_now()`)
	flushes := c.claimAll()
	if len(flushes) != 1 || len(flushes[0].end.Ops) != 1 || !flushes[0].claimed.Probe {
		t.Fatalf("the probe is %v", flushedIDs(flushes))
	}
	c.fail(flushes[0], retried("deadline"))
	if state, probes := c.Breaker(); state != "open" || probes != 1 {
		t.Fatalf("the breaker is %s after %d probes", state, probes)
	}
	c.wait()
	c.Exec(`UPDATE endpoint_pace SET probe_at = tranche_now()`)
	c.Exec(`UPDATE collector SET backoff_until = tranche_now() + interval '1 hour'`)
	c.none("the collector rests")
	c.Exec(`UPDATE endpoint_pace SET breaker = 'closed', breaker_since = tranche_now(), probe_at = NULL`)
	testenv.Same(t, len(c.claimAll()), 6, "flushes after the outage")
	testenv.Same(t, c.Number(`SELECT sum(attempts) FROM collector_op`), 0, "attempts were spent")
}

// The breaker is closed by a flush that is its probe when the service has handled it. When its handler fails, that
// says nothing.
func TestAFlushIsAProbe(t *testing.T) {
	t.Parallel()
	type failing = map[string]workqueue.SlotError
	for name, tc := range map[string]struct {
		end    func(*opsBench, *flushOf)
		closed bool
		failed int
	}{
		"done":        {func(c *opsBench, f *flushOf) { c.record(f, nil) }, true, 0},
		"refused":     {func(c *opsBench, f *flushOf) { c.record(f, failing{"a0": refused("bad")}) }, true, 0},
		"not now":     {func(c *opsBench, f *flushOf) { c.record(f, failing{"a0": retried("db")}) }, false, 1},
		"not asked":   {func(c *opsBench, f *flushOf) { f.end.Ops, f.end.Slots = nil, nil; c.recordAs(f) }, false, 0},
		"crashed":     {func(c *opsBench, f *flushOf) { c.complain(f, retried("crash")) }, false, 0},
		"permanently": {func(c *opsBench, f *flushOf) { c.complain(f, refused("bad")) }, true, 0},
		"too much":    {func(c *opsBench, f *flushOf) { c.complain(f, retried("throttled")) }, true, 0},
		"it drains":   {func(c *opsBench, f *flushOf) { c.complain(f, retried("shutdown")) }, false, 1},
		"silent":      {func(c *opsBench, f *flushOf) { c.fail(f, retried("deadline")) }, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := collect(t, gatherOps())
			c.Exec(`UPDATE endpoint_pace SET breaker = 'open', breaker_since = tranche_now(), breaker_reason = 'x',
				probe_at = tranche_now()`)
			c.add("k", "a0", "b0")
			tc.end(c, c.one("a0"))
			if state, failed := c.Breaker(); (state == "closed") != tc.closed || failed != tc.failed {
				t.Errorf("the breaker is %s after %d failed probes, want %d", state, failed, tc.failed)
			}
		})
	}
}

// What a run probes with while a flush that is a probe fails is judged anyway.
func TestAFlushThatFailsLeavesTheProbeOfARun(t *testing.T) {
	t.Parallel()
	c := collect(t, gatherOps())
	c.Exec(`UPDATE endpoint_pace SET breaker = 'open', breaker_since = tranche_now(), breaker_reason = 'x',
		probe_at = tranche_now()`)
	c.add("k", "a0", "b0")
	f := c.one("a0")
	run := c.Load(storetest.Chunked(1), 4)
	c.Exec(`UPDATE endpoint_pace SET probe_at = tranche_now()`) // the flush takes longer than the pause
	probe := c.bench.One(run)
	c.fail(f, retried("deadline"))
	if state, failed := c.Breaker(); state != "open" || failed != 1 {
		t.Fatalf("the breaker is %s after %d failed probes", state, failed)
	}
	if change := c.Look(c.bench.Record(storetest.Whole(probe)).Look); change.Open || !change.Changed {
		t.Errorf("a run's probe was answered, and the breaker is %+v", change)
	}
}

// No outage leaves the breaker closed: failures of few keys, or before something came through, be it a flush of
// another collector or a slice of a run, and what a service says of itself, of its operations, or of a load that is too
// much.
func TestFlushesThatAreNoOutage(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fail func(*opsBench)
		open bool
	}{
		"five keys":       {func(c *opsBench) { c.failKeys(5, retried("deadline")) }, true},
		"four keys":       {func(c *opsBench) { c.failKeys(4, retried("crash")) }, false},
		"throttled":       {func(c *opsBench) { c.failKeys(6, retried("throttled")) }, false},
		"it drains":       {func(c *opsBench) { c.failKeys(6, retried("shutdown")) }, false},
		"one key":         {func(c *opsBench) { c.failOneKey(6) }, false},
		"one worked":      {func(c *opsBench) { c.failKeys(6, retried("crash")); c.otherWorks() }, false},
		"a run works":     {func(c *opsBench) { c.failKeys(6, retried("crash")); c.runWorks() }, false},
		"a run worked":    {func(c *opsBench) { c.runWorks(); c.failAfter(100 * time.Millisecond) }, false},
		"long before":     {func(c *opsBench) { c.runWorks(); c.failAfter(time.Second) }, true},
		"bad operations":  {func(c *opsBench) { c.complainOfKeys(6, 1) }, false},
		"... found alone": {func(c *opsBench) { c.complainOfKeys(6, 4) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := collect(t, gatherOps())
			tc.fail(c)
			testenv.Same(t, c.isOpen(), tc.open, "the breaker is open")
		})
	}
}

// runWorks has a slice of a run come through.
func (c *opsBench) runWorks() {
	c.Helper()
	c.bench.Record(storetest.Whole(c.bench.One(c.Load(storetest.Chunked(1), 1))))
}

// failAfter has six keys fail, some time after a slice of a run ended.
func (c *opsBench) failAfter(d time.Duration) {
	c.Helper()
	c.failKeys(6, retried("deadline"))
	c.Exec(`UPDATE collector_key SET failed_at = (SELECT max(ended_at) FROM work_slice) + $1::interval`, d)
}

// complainOfKeys has the service fail all flushes of n keys, the first of each so many times.
func (c *opsBench) complainOfKeys(n, times int) {
	c.Helper()
	flushes := c.flushKeys(n)
	for range times - 1 {
		for _, f := range flushes {
			c.complain(f, retried("crash"))
		}
		c.wait()
		c.Exec(`UPDATE collector SET failures = 0`) // so that they go side by side
		flushes = c.claimAll()
	}
	for _, f := range flushes {
		c.complain(f, retried("crash"))
	}
}

// Each key brings its own failure: neither what another's flush met, nor that the code is one that is not retried,
// hides it.
func TestTheBreakerNamesWhatKeysFailedOf(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		first, rest string
		never       []string
	}{
		"one was too much":  {first: "throttled", rest: collector.CodeNoListeners},
		"not retried":       {first: "deadline", rest: "deadline", never: []string{"deadline"}},
		"another had ended": {first: "shutdown", rest: "incomplete"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spec := gatherOps()
			spec.NoRetryCodes = tc.never
			c := collect(t, spec)
			for i, f := range c.flushKeys(6) {
				if code := tc.rest; i == 0 {
					c.fail(f, retried(tc.first))
				} else {
					c.fail(f, retried(code))
				}
			}
			testenv.MustSame(t, c.isOpen(), true, "five keys failed: the breaker is open")
			testenv.Same(t, c.Number(`SELECT count(*) FROM endpoint_pace WHERE breaker_reason LIKE '%' || $1`, // no message
				"the last one with "+tc.rest), 1, "reasons that name %s", tc.rest)
		})
	}
}

// A collector's failures are forgotten by what was begun after them, and those of flushes that ended together count as
// of the latest.
func TestFailuresAreForgottenByWhatBeganLater(t *testing.T) {
	t.Parallel()
	c := collect(t, gatherOps())
	failures := func(want int, when string) {
		t.Helper()
		testenv.Same(t, c.Number(`SELECT failures FROM collector`), want, "failures %s", when)
	}
	later := func() { c.Exec(`UPDATE collector_key SET due_at = due_at + interval '1 hour' WHERE flush IS NULL`) }
	early := c.flushKeys(6)
	c.add("x", "x1", "x2")
	c.fail(c.one("x1", "x2"), retried("crash"))
	later()
	c.add("y", "y1", "y2")
	late := c.one("y1", "y2")
	failures(1, "of which others began later")
	ends := make([]collector.FlushEnd, 0, len(early))
	for _, f := range append(early[1:], late) {
		f.end.Failure = new(retried("crash"))
		ends = append(ends, f.end)
	}
	testenv.Must(collector.New(c.Store).RecordFlushes(t.Context(), ends))(t)
	failures(2, "when one of several began after the first")
	c.record(early[0], nil)
	failures(2, "after a success that began before them")
	later()
	c.add("z", "z1", "z2")
	c.record(c.one("z1", "z2"), nil)
	failures(0, "after a success that began later")
}

// A flush of which no one was asked leaves its key as it was.
func TestAFlushThatAsksNobodyChangesNothing(t *testing.T) {
	t.Parallel()
	c := collect(t, gatherOps())
	c.add("k", "a", "b")
	c.fail(c.one("a", "b"), retried("crash"))
	c.wait()
	f := c.one("a")
	f.end.Ops, f.end.Slots = nil, nil
	c.recordAs(f)
	testenv.Same(t, c.Number(`SELECT count(*) FROM collector_key WHERE size_limit = 1 AND failures = 1
		AND failed_at IS NOT NULL AND failed_ops = 2 AND failed_code = 'crash' AND flush IS NULL`), 1, "keys as they were")
}

func (c *opsBench) failOneKey(times int) {
	c.Helper()
	c.add("k", "a", "b")
	for range times {
		c.wait()
		for _, f := range c.claimAll() {
			c.fail(f, retried("crash"))
		}
	}
}

// otherWorks has a flush of another collector of the endpoint come through.
func (c *opsBench) otherWorks() {
	c.Helper()
	spec := gatherOps()
	spec.MinSize = 1
	testenv.Must(collector.New(c.Store).ApplyCollector(c.Context(), collector.Text{Name: "d", Spec: spec, Source: "d"},
		"ann"))(c)
	_, _, err := collector.New(c.Store).AddOps(c.Context(), "d", 0, [][]collector.Op{{{ID: "x", Key: "x"}}})
	testenv.NoError(c, err)
	was := c.id
	c.id = int32(c.Number(`SELECT id FROM collector WHERE name = 'd'`))
	c.record(c.one("x"), nil)
	c.id = was
}

// An operation that is alone, and with which nothing else comes through, is parked after its attempts when the service
// says that it fails. After silences no one knows at first whether the service is there.
func TestWhatTheServiceSaysIsAVerdict(t *testing.T) {
	t.Parallel()
	spec := gatherOps()
	spec.MinSize, spec.MaxAttempts = 1, 3
	for name, refuses := range map[string]bool{"refused": true, "silent": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := collect(t, spec)
			c.add("k", "a")
			tries := 0
			for ; c.Number(`SELECT count(*) FROM collector_op WHERE parked_at IS NULL`) > 0 && tries < 20; tries++ {
				c.wait()
				f := c.one("a")
				f.end.Replied, f.end.Refused = refuses, refuses
				c.fail(f, retried("crash"))
			}
			testenv.Same(t, tries, map[bool]int{true: 3, false: 7}[refuses], "tries before it was parked")
		})
	}
}

// Flushes of two claims, between which the collector changed, are recorded together.
func TestEachFlushIsJudgedByItsOwnClaim(t *testing.T) {
	t.Parallel()
	spec := gatherOps()
	spec.MinSize, spec.MaxAttempts = 1, 1
	c := collect(t, spec)
	c.add("old", "a")
	before := c.one("a")
	spec.MaxAttempts = 5
	c.apply(spec)
	c.add("new", "b")
	after := c.one("b")
	ends := []collector.FlushEnd{after.end, before.end}
	for i := range ends {
		e := retried("later")
		ends[i].Slots[0] = collector.FlushSlot{Came: true, Err: &e}
	}
	out, err := collector.New(c.Store).RecordFlushes(t.Context(), ends)
	if err != nil || out[0].Parked != 0 || out[1].Parked != 1 {
		t.Errorf("%+v, %v; want the second to be parked, which had one attempt when it was claimed", out, err)
	}
}

// Keys are kept for flushes that are sent again, unless they are someone else's by now.
func TestFlushesAreProlonged(t *testing.T) {
	t.Parallel()
	c := collect(t, gatherOps())
	c.add("k", "a", "b")
	f := c.one("a", "b")
	c.Exec(`UPDATE collector_key SET flush_until = tranche_now() - interval '1 s'`)
	until, other := time.Now().Add(time.Minute+dispatch.DefaultClaimTTL), uuid.New()
	kept, err := collector.New(c.Store).ProlongFlushes(t.Context(), []uuid.UUID{other, f.end.Flush.ID},
		[]time.Duration{time.Minute, time.Minute})
	if err != nil || len(kept) != 1 || kept[0] != f.end.Flush.ID {
		t.Fatalf("kept %v, %v", kept, err)
	}
	testenv.Same(t, testenv.Must(collector.New(c.Store).SweepCollectors(t.Context(), c.Lead()))(t).Released, 0, "released")
	testenv.Same(t, c.Number(`SELECT count(*) FROM collector_key WHERE flush_until >= $1`, until), 1,
		"it is not kept for as long as a flush takes, and longer")
}
