package collector_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/doctor"
	"github.com/tranchehq/tranche/workqueue/session"
)

// wantWhy fails the test unless exactly these reasons are given.
func (c *opsBench) wantWhy(when string, codes ...string) map[string]collector.CollectorReason {
	c.Helper()
	all := map[string]collector.CollectorReason{}
	for _, why := range testenv.Must(collector.New(c.Store).Collector(c.Context(), "c"))(c).Why {
		all[why.Code] = why
	}
	for _, code := range codes {
		if _, told := all[code]; !told {
			c.Errorf("%s, %s is not told", when, code)
		}
	}
	testenv.Same(c, len(all), len(codes), "%s, what keeps operations waiting", when)
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
		t.Errorf("it is reported as %q until %v; want %s", why.Text, why.Until, want)
	}
	c.record(begun, nil)
	c.wantWhy("when another may be flushed")
	c.Exec(`UPDATE collector SET failures = 3`)
	c.add("l", "e", "f")
	testenv.MustSame(t, len(c.claimAll()), 1, "flushes claimed")
	why = c.wantWhy("after three failures", "one_at_a_time", "flushing")["one_at_a_time"]
	testenv.Has(t, why.Text, "the last 3 flushes came to nothing", "it is told as")
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
	testenv.MustSame(t, len(c.claimAs(c.Session, most-1)), most-1, "claimed")
	c.wantWhy("while there is a place", "flushing")
	c.claimAs(c.Session, 1)
	why := c.wantWhy("without a place", "nodes_busy", "flushing")["nodes_busy"]
	testenv.Has(t, why.Text, "which are 1; collector c has the most of them, 96", "it is told as")
	testenv.Must(session.New(c.Store).StartSession(t.Context(), session.NodeInfo{Host: "idle"}, time.Hour))(t)
	c.wantWhy("with another node", "flushing")
}

// TestDoctorChecksCollectors breaks a collector in each way that the doctor looks for. Before that, and after each is
// fixed, it finds nothing.
func TestDoctorChecksCollectors(t *testing.T) {
	t.Parallel()
	c := collect(t, gatherOps())
	c.add("a", "1", "2", "3")
	c.record(c.one("1", "2", "3"), map[string]workqueue.SlotError{"1": refused("BAD"), "2": retried("BUSY")})
	c.add("b", "4")
	diagnose := func() doctor.Report {
		c.Helper()
		return testenv.Must(doctor.New(c.Store).Doctor(c.Context()))(t)
	}
	if report := diagnose(); !report.OK() {
		t.Fatalf("it found %v in what is whole", report.Violations)
	}
	for _, way := range []struct{ says, breaks, fixes string }{
		{"count what does not exist", `UPDATE collector_key SET parked = parked + 1 WHERE key = 'a'`,
			`UPDATE collector_key SET parked = parked - 1 WHERE key = 'a'`},
		{"count what does not exist", `UPDATE collector_op SET key = 'c' WHERE op_id = '4'`,
			`UPDATE collector_op SET key = 'b' WHERE op_id = '4'`},
		{"without an operation", `INSERT INTO collector_key (collector, key_version, key, untried)
				SELECT id, 1, 'd', 0 FROM collector`, `DELETE FROM collector_key WHERE key = 'd'`},
		{"wait for no time", `UPDATE collector_key SET due_at = NULL WHERE key = 'b'`,
			`UPDATE collector_key SET due_at = oldest_at + interval '1 hour' WHERE key = 'b'`},
		{"counts as done", `UPDATE collector SET key_version = 2, drained_key_version = 2`,
			`UPDATE collector SET key_version = 1, drained_key_version = 1`},
		{"of no collector", `UPDATE collector_op SET collector = collector + 100 WHERE op_id = '4'`,
			`UPDATE collector_op SET collector = collector - 100 WHERE op_id = '4'`},
	} {
		c.Exec(way.breaks)
		report := diagnose()
		if !slices.ContainsFunc(report.Violations, func(v doctor.Violation) bool {
			return v.Invariant == doctor.KeysAddUp && strings.Contains(v.What, way.says)
		}) {
			t.Errorf("after %s it found %v; want %q", way.breaks, report.Violations, way.says)
		}
		c.Exec(way.fixes)
		if report := diagnose(); !report.OK() {
			t.Fatalf("after %s it found %v in what is whole", way.fixes, report.Violations)
		}
	}
}
