package collector_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/collector"
)

type opsBench struct {
	*bench
	id int32
}

// gatherOps is a collector that flushes 2 to 3 operations, or what is an hour old, and knows no backoff.
func gatherOps() collector.CollectorSpec {
	return collector.CollectorSpec{Endpoint: storetest.Endpoint, MinSize: 2, MaxSize: 3, MaxAge: collector.Span(time.Hour),
		MaxAttempts: 2, InFlight: 100, Dedupe: collector.DefaultDedupe, Timeout: collector.Span(time.Minute),
		Order: collector.OrderFIFO}
}

func collect(t *testing.T, spec collector.CollectorSpec) *opsBench {
	t.Helper()
	c := &opsBench{bench: setup(t)}
	c.apply(spec)
	c.id = int32(c.Number(`SELECT id FROM collector WHERE name = 'c'`))
	return c
}

func (c *opsBench) apply(spec collector.CollectorSpec) workqueue.AppliedDocument {
	c.Helper()
	return testenv.Must(collector.New(c.Store).ApplyCollector(c.Context(), collector.Text{Name: "c", Spec: spec,
		Source: fmt.Sprintf("%+v", spec)}, "ann"))(c)
}

func (c *opsBench) add(key string, ids ...string) collector.AddedOps {
	c.Helper()
	ops := make([]collector.Op, len(ids))
	for i, id := range ids {
		ops[i] = collector.Op{ID: id, Key: key, Payload: []byte(`{"n":1}`)}
	}
	return c.addOps(ops...)
}

func (c *opsBench) addOps(ops ...collector.Op) collector.AddedOps {
	c.Helper()
	out, _, err := collector.New(c.Store).AddOps(c.Context(), "c", 0, [][]collector.Op{ops})
	testenv.NoError(c, err)
	return out[0]
}

// flushOf is a claimed flush with what it takes.
type flushOf struct {
	claimed collector.ClaimedFlushes
	end     collector.FlushEnd
}

func (f *flushOf) ids() []string {
	ids := make([]string, len(f.end.Ops))
	for i, op := range f.end.Ops {
		ids[i] = op.ID
	}
	return ids
}

func (c *opsBench) claimAs(session workqueue.SessionID, most int) []*flushOf {
	c.Helper()
	claimed := testenv.Must(collector.New(c.Store).ClaimFlushes(c.Context(), collector.FlushRequest{Session: session,
		Collector: c.id, Max: most}))(c)
	ops := testenv.Must(collector.New(c.Store).ReadFlushes(c.Context(), &claimed, 1<<20))(c)
	flushes := make([]*flushOf, len(claimed.Flushes))
	for i, f := range claimed.Flushes {
		flushes[i] = &flushOf{claimed: claimed, end: collector.FlushEnd{Claim: &claimed, Flush: f, Ops: ops[i],
			Slots: make([]collector.FlushSlot, len(ops[i]))}}
	}
	return flushes
}

func (c *opsBench) claimAll() []*flushOf { return c.claimAs(c.Session, 1000) }

// one claims what must be a single flush, of these operations.
func (c *opsBench) one(ids ...string) *flushOf {
	c.Helper()
	flushes := c.claimAll()
	if len(flushes) != 1 || fmt.Sprint(flushes[0].ids()) != fmt.Sprint(ids) {
		c.Fatalf("claimed %d flushes, of %v; want one of %v", len(flushes), flushedIDs(flushes), ids)
	}
	return flushes[0]
}

func (c *opsBench) none(why string) {
	c.Helper()
	if flushes := c.claimAll(); len(flushes) > 0 {
		c.Fatalf("claimed %v although %s", flushedIDs(flushes), why)
	}
}

func flushedIDs(flushes []*flushOf) (ids [][]string) {
	for _, f := range flushes {
		ids = append(ids, f.ids())
	}
	return ids
}

// record ends a flush: what failed names is failed with its error, the rest succeeded.
func (c *opsBench) record(f *flushOf, failed map[string]workqueue.SlotError) collector.FlushRecorded {
	c.Helper()
	f.end.Replied = true
	for i, op := range f.end.Ops {
		f.end.Slots[i].Came = true
		if e, bad := failed[op.ID]; bad {
			f.end.Slots[i].Err = &e
		}
	}
	return c.recordAs(f)
}

func (c *opsBench) recordAs(f *flushOf) collector.FlushRecorded {
	c.Helper()
	out := testenv.Must(collector.New(c.Store).RecordFlushes(c.Context(), []collector.FlushEnd{f.end}))(c)
	c.Check()
	return out[0]
}

func (c *opsBench) fail(f *flushOf, e workqueue.SlotError) {
	c.Helper()
	f.end.Failure = &e
	c.recordAs(f)
}

// wait has all times of the collector pass: of keys, of operations and of its rest.
func (c *opsBench) wait() {
	c.Helper()
	c.Exec(`UPDATE collector_op SET not_before = tranche_now() WHERE not_before IS NOT NULL`)
	c.Exec(`UPDATE collector_key SET due_at = tranche_now(), held_until = NULL,
		retry_at = CASE WHEN retry_at IS NOT NULL THEN tranche_now() END WHERE due_at IS NOT NULL`)
	c.Exec(`UPDATE collector SET backoff_until = NULL`)
}

func retried(code string) workqueue.SlotError {
	return workqueue.SlotError{Code: code, Message: "not now", Retry: true}
}

func refused(code string) workqueue.SlotError {
	return workqueue.SlotError{Code: code, Message: "never"}
}
