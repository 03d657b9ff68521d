package workqueue_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/workqueue"
)

// failKeys adds two operations to each of n keys, has them flushed and the flushes fail.
func (c *opsBench) failKeys(n int, e workqueue.SlotError) {
	c.Helper()
	for i := range n {
		c.add(fmt.Sprint("k", i), fmt.Sprint("a", i), fmt.Sprint("b", i))
	}
	flushes := c.claimAll()
	if len(flushes) != n {
		c.Fatalf("claimed %d flushes of %d", len(flushes), n)
	}
	for _, f := range flushes {
		c.fail(f, e)
	}
}

func (c *opsBench) isOpen() bool {
	c.Helper()
	watched, err := c.store.WatchedEndpoints(c.Context())
	if err != nil {
		c.Fatal(err)
	}
	change := c.look(workqueue.Look{Endpoints: watched}) // as the leader does, each second
	return change.Open
}

// Flushes that fail open the breaker of their endpoint: runs know of it, and the next flush is a probe of one
// operation. When it is answered, nobody rests any longer.
func TestFlushesOpenAndCloseTheBreaker(t *testing.T) {
	t.Parallel()
	c := collect(t, gatherOps())
	c.failKeys(6, retried(workqueue.CodeNoListeners))
	if !c.isOpen() {
		t.Fatal("six keys found nobody, and the breaker is closed")
	}
	run := c.load(chunked(1), 4)
	if slices := c.claim(run, 4); len(slices) != 0 {
		t.Errorf("a run claimed %d slices before the first probe is due", len(slices))
	}
	v, err := c.store.Collector(t.Context(), "c")
	if err != nil || len(v.Why) != 2 || v.Why[1].Code != "breaker" || !strings.Contains(v.Why[1].Text, "is open since 2") {
		t.Fatalf("why: %+v, %v", v.Why, err)
	}
	c.wait()
	c.none("no probe is due yet")
	c.exec(`UPDATE endpoint_pace SET probe_at = clock_timestamp()`)
	flushes := c.claimAll()
	if len(flushes) != 1 || len(flushes[0].end.Ops) != 1 || !flushes[0].claimed.Probe {
		t.Fatalf("the probe is %v", flushedIDs(flushes))
	}
	c.fail(flushes[0], retried("deadline"))
	if state, probes := c.breaker(); state != "open" || probes != 1 {
		t.Fatalf("the breaker is %s after %d probes", state, probes)
	}
	c.wait()
	c.exec(`UPDATE endpoint_pace SET probe_at = clock_timestamp()`)
	c.exec(`UPDATE collector SET rest_until = clock_timestamp() + interval '1 hour'`)
	c.none("the collector rests")
	c.exec(`UPDATE endpoint_pace SET breaker = 'closed', breaker_since = clock_timestamp(), probe_at = NULL`)
	if flushes = c.claimAll(); len(flushes) != 6 {
		t.Errorf("%d flushes after the outage", len(flushes))
	}
	if n := c.number(`SELECT sum(attempts) FROM collector_op`); n != 0 {
		t.Errorf("%d attempts were spent", n)
	}
}

// The breaker is closed by a flush that is its probe when the service has dealt with it.
func TestAFlushIsAProbe(t *testing.T) {
	t.Parallel()
	type failing = map[string]workqueue.SlotError
	for name, tc := range map[string]struct {
		end    func(*opsBench, *flushOf)
		closed bool
	}{
		"done":      {func(c *opsBench, f *flushOf) { c.record(f, nil) }, true},
		"refused":   {func(c *opsBench, f *flushOf) { c.record(f, failing{"a0": refused("bad")}) }, true},
		"not now":   {func(c *opsBench, f *flushOf) { c.record(f, failing{"a0": retried("db")}) }, false},
		"not asked": {func(c *opsBench, f *flushOf) { f.end.Ops, f.end.Slots = nil, nil; c.recordAs(f) }, false},
		"crashed": {func(c *opsBench, f *flushOf) {
			f.end.Replied, f.end.Refused = true, true
			c.fail(f, retried("crash"))
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := collect(t, gatherOps())
			c.exec(`UPDATE endpoint_pace SET breaker = 'open', breaker_since = clock_timestamp(), breaker_reason = 'x',
				probe_at = clock_timestamp()`)
			c.add("k", "a0", "b0")
			tc.end(c, c.one("a0"))
			if state, _ := c.breaker(); (state == "closed") != tc.closed {
				t.Errorf("the breaker is %s", state)
			}
		})
	}
}

// What is no outage leaves the breaker closed: failures of few keys, or before a flush that came through, also one of
// another collector, and what a service says of itself or of a load that is too much.
func TestFlushesThatAreNoOutage(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*opsBench){
		"four keys":  func(c *opsBench) { c.failKeys(4, retried("crash")) },
		"throttled":  func(c *opsBench) { c.failKeys(6, retried("throttled")) },
		"it drains":  func(c *opsBench) { c.failKeys(6, retried("shutdown")) },
		"one key":    func(c *opsBench) { c.failOneKey(6) },
		"one worked": func(c *opsBench) { c.failKeys(6, retried("crash")); c.otherWorks() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := collect(t, gatherOps())
			if fail(c); c.isOpen() {
				t.Error("the breaker is open")
			}
		})
	}
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
	if _, err := c.store.ApplyCollector(c.Context(), workqueue.CollectorText{Name: "d", Spec: spec, Source: "d"},
		"ann"); err != nil {
		c.Fatal(err)
	}
	if _, _, err := c.store.AddOps(c.Context(), "d", 0, [][]workqueue.Op{{{ID: "x", Key: "x"}}}); err != nil {
		c.Fatal(err)
	}
	was := c.id
	c.id = int32(c.number(`SELECT id FROM collector WHERE name = 'd'`))
	c.record(c.one("x"), nil)
	c.id = was
}

// An operation that is alone, and with which nothing else comes through, is parked after its attempts when the service
// says that it fails. After silences nobody knows at first whether the service is there.
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
			for ; c.number(`SELECT count(*) FROM collector_op WHERE parked_at IS NULL`) > 0 && tries < 20; tries++ {
				c.wait()
				f := c.one("a")
				f.end.Replied, f.end.Refused = refuses, refuses
				c.fail(f, retried("crash"))
			}
			if want := map[bool]int{true: 3, false: 7}[refuses]; tries != want {
				t.Errorf("it was parked after %d tries, want %d", tries, want)
			}
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
	ends := []workqueue.FlushEnd{after.end, before.end}
	for i := range ends {
		e := retried("later")
		ends[i].Slots[0] = workqueue.FlushSlot{Came: true, Err: &e}
	}
	out, err := c.store.RecordFlushes(t.Context(), ends)
	if err != nil || out[0].Parked != 0 || out[1].Parked != 1 {
		t.Errorf("%+v, %v; want the second to be parked, which had one attempt when it was claimed", out, err)
	}
}

// Keys are kept for flushes that are sent again, unless they are somebody else's by now.
func TestFlushesAreProlonged(t *testing.T) {
	t.Parallel()
	c := collect(t, gatherOps())
	c.add("k", "a", "b")
	f := c.one("a", "b")
	c.exec(`UPDATE collector_key SET flush_until = clock_timestamp() - interval '1 s'`)
	other := uuid.New()
	kept, err := c.store.ProlongFlushes(t.Context(), []uuid.UUID{other, f.end.Flush.ID},
		[]time.Duration{time.Minute, time.Minute})
	if err != nil || len(kept) != 1 || kept[0] != f.end.Flush.ID {
		t.Fatalf("kept %v, %v", kept, err)
	}
	if swept, err := c.store.SweepCollectors(t.Context(), c.lead()); err != nil || swept.Released != 0 {
		t.Errorf("%+v, %v", swept, err)
	}
	if c.number(`SELECT count(*) FROM collector_key WHERE flush_until > clock_timestamp() + interval '60 s'`) != 1 {
		t.Error("it is not kept for as long as a flush takes, and longer")
	}
}
