package collector_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/collector"
)

func foldOps(how string) collector.CollectorSpec {
	spec := gatherOps()
	spec.Fold, spec.Strict, spec.MinSize, spec.MaxSize = how, true, 1, 10
	return spec
}

// update adds an operation like B2: the second of B, of the key k.
func (c *opsBench) update(ids ...string) {
	c.Helper()
	ops := make([]collector.Op, len(ids))
	for i, id := range ids {
		ops[i] = collector.Op{ID: id, Key: "k", Fold: id[:1], Payload: fmt.Appendf(nil, `{%q:%q}`, id, id)}
	}
	c.addOps(ops...)
}

// What a flush has sent may have been carried out although no one has heard of it: what is sent after that stands for
// the same, or more. Else a service that knows the newer one would do the older one, and leave the newer one out.
func TestWhatStoodForOthersIsNotFollowedByThem(t *testing.T) {
	t.Parallel()
	spec := foldOps(collector.FoldLast)
	spec.Backoff, spec.MaxBackoff = collector.Span(time.Hour), collector.Span(time.Hour)
	c := collect(t, spec)
	c.update("A1", "B1", "A2", "C1", "A3", "C2")
	f := c.one("B1", "A3", "C2")
	f.end.Failure = new(retried("deadline"))
	c.recordAs(f)
	c.wait()
	f = c.one("A3") // of half as many, and not A1, which stands before B1
	testenv.Same(t, len(f.end.Ops[0].Folded), 2, "are folded into A3")
	c.record(f, nil)
	c.update("B2")
	f = c.one("C2", "B2")
	f.end.Replied, f.end.Failure = true, new(retried("deadline"))
	f.end.Slots[1] = collector.FlushSlot{Came: true, Err: new(retried("later"))} // and nothing of C2
	c.recordAs(f)
	c.wait()
	c.Exec(`UPDATE collector_op SET not_before = 'infinity' WHERE fold = 'B'`)
	c.record(c.one("C2"), nil) // C1 stands before B2, which waits for its next try, and C2 behind it
}

func TestBoundsOfFolding(t *testing.T) {
	t.Parallel()
	spec := foldOps(collector.FoldMerge)
	spec.MaxSize = 2
	c := collect(t, spec)
	c.update("A1", "B1", "A2", "C1", "B2")
	c.record(c.one("A2", "B2"), nil) // C is a third, and all of B goes
	c.record(c.one("C1"), nil)
	half := `"` + strings.Repeat("x", collector.MaxOpPayload/2) + `"`
	for i := range 3 {
		c.addOps(collector.Op{ID: fmt.Sprint("L", i), Key: "k", Fold: "L", Payload: fmt.Appendf(nil, `{"%d":%s}`, i, half)})
	}
	for _, id := range []string{"L0", "L1", "L2"} { // two of them are more than an operation may have, or a flush
		f := c.claimAll()[0]
		if got := f.ids(); got[0] != id || len(f.end.Ops[0].Folded) != 0 {
			t.Fatalf("flushed %v, %v folded; want %s", got, f.end.Ops[0].Folded, id)
		}
		f.end.Ops, f.end.Slots = f.end.Ops[:1], f.end.Slots[:1]
		c.record(f, nil)
	}
	spec.MaxSize = 10
	c.apply(spec)
	for _, by := range []string{"V", "W", "X", "Y"} {
		c.addOps(collector.Op{ID: by + "1", Key: "k", Fold: by, Payload: fmt.Appendf(nil, `{"big":%s}`, half)})
	}
	c.update("Y2", "Z1")
	c.record(c.one("V1", "W1", "X1"), nil) // Y1 has no room, and nothing passes it
	c.record(c.one("Y2", "Z1"), nil)
	c.update("A3")
	spec.FoldBy = "account"
	c.apply(spec)
	c.update("A4") // the A of another field
	c.record(c.one("A3"), nil)
	c.record(c.one("A4"), nil)
	c.update("A5", "A6")
	spec.Fold = collector.FoldLast
	c.apply(spec)
	f := c.one("A6")
	testenv.Same(t, string(f.end.Ops[0].Payload), `{"A5":"A5","A6":"A6"}`, "added to be merged")
	c.record(f, nil)
	many := make([]collector.Op, collector.MaxFlushSize+1)
	for i := range many {
		many[i] = collector.Op{ID: fmt.Sprint("M", i), Key: "k", Fold: "M", Payload: fmt.Appendf(nil, `{"n":%d}`, i)}
	}
	c.addOps(many...)
	f = c.one(many[collector.MaxFlushSize-1].ID)
	testenv.Same(t, c.record(f, nil).Done, collector.MaxFlushSize, "recorded")
	c.one(many[collector.MaxFlushSize].ID)
}
