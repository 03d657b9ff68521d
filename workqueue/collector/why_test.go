package collector_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/session"
)

// whyOf returns what keeps operations of a collector waiting, by its code.
func (c *opsBench) whyOf(name string) map[string]collector.CollectorReason {
	c.Helper()
	v := testenv.Must(collector.New(c.Store).Collector(c.Context(), name))(c)
	all := map[string]collector.CollectorReason{}
	for _, why := range v.Why {
		all[why.Code] = why
	}
	return all
}

// wantWhy fails the test unless exactly these reasons are given.
func (c *opsBench) wantWhy(when string, codes ...string) map[string]collector.CollectorReason {
	c.Helper()
	all := c.whyOf("c")
	for _, code := range codes {
		if _, told := all[code]; !told {
			c.Errorf("%s, %s is not told", when, code)
		}
	}
	if len(all) != len(codes) {
		c.Errorf("%s, what keeps operations waiting is %v; want %v", when, all, codes)
	}
	return all
}

// Operations that wait behind a flush are told of it, with the time at which their key is free again.
func TestWhatWaitsForAFlushIsToldOfIt(t *testing.T) {
	t.Parallel()
	c := collect(t, gatherOps())
	c.add("k", "a", "b")
	begun := c.one("a", "b")
	c.add("k", "c", "d")
	why := c.wantWhy("while the only key is being flushed", "flushing")["flushing"]
	if want := begun.end.Flush.Claimed.Add(time.Minute + dispatch.DefaultClaimTTL); why.Until == nil ||
		!why.Until.Equal(want) || !strings.Contains(why.Text, "being flushed: 1, the first since 2") {
		t.Errorf("it is told of as %q until %v; want %s", why.Text, why.Until, want)
	}
	c.record(begun, nil)
	c.wantWhy("when another may be flushed")
	c.Exec(`UPDATE collector SET failures = 3`)
	c.add("l", "e", "f")
	if flushes := c.claimAll(); len(flushes) != 1 {
		t.Fatalf("claimed %v; want one at a time", flushedIDs(flushes))
	}
	why = c.wantWhy("after three failures", "one_at_a_time", "flushing")["one_at_a_time"]
	if !strings.Contains(why.Text, "the last 3 flushes came to nothing") {
		t.Errorf("it is told as %q", why.Text)
	}
	c.Exec(`UPDATE collector SET failures = 0, in_flight = 1, spec = jsonb_set(spec::jsonb, '{in_flight}', '1')`)
	c.wantWhy("when no more may be in progress", "in_flight", "flushing")
}

// When no node has a place left for a collector, that is told, with the collector that has most of them.
func TestThatNoNodeHasRoomIsTold(t *testing.T) {
	t.Parallel()
	c := collect(t, gatherOps())
	const most = 96
	for i := range most + 1 {
		c.add(fmt.Sprint("k", i), fmt.Sprint("a", i), fmt.Sprint("b", i))
	}
	if n := len(c.claimAs(c.Session, most-1)); n != most-1 {
		t.Fatalf("claimed %d", n)
	}
	c.wantWhy("while there is a place", "flushing")
	c.claimAs(c.Session, 1)
	why := c.wantWhy("without a place", "nodes_busy", "flushing")["nodes_busy"]
	if want := "which are 1; collector c has the most of them, 96"; !strings.Contains(why.Text, want) {
		t.Errorf("it is told as %q; want …%s…", why.Text, want)
	}
	testenv.Must(session.New(c.Store).StartSession(t.Context(), session.NodeInfo{Host: "idle"}, time.Hour))(t)
	c.wantWhy("with another node", "flushing")
}
