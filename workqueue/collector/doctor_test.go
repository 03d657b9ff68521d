package collector_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/doctor"
)

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
		report := testenv.Must(doctor.New(c.Store).Doctor(c.Context()))(t)
		return report
	}
	if report := diagnose(); !report.OK() {
		t.Fatalf("it found %v in what is whole", report.Violations)
	}
	for _, way := range []struct{ says, breaks, mends string }{
		{
			"count what is not there", `UPDATE collector_key SET parked = parked + 1 WHERE key = 'a'`,
			`UPDATE collector_key SET parked = parked - 1 WHERE key = 'a'`,
		},
		{
			"count what is not there", `UPDATE collector_op SET key = 'c' WHERE op_id = '4'`,
			`UPDATE collector_op SET key = 'b' WHERE op_id = '4'`,
		},
		{
			"without an operation", `INSERT INTO collector_key (collector, key_version, key, untried)
				SELECT id, 1, 'd', 0 FROM collector`, `DELETE FROM collector_key WHERE key = 'd'`,
		},
		{
			"wait for no time", `UPDATE collector_key SET due_at = NULL WHERE key = 'b'`,
			`UPDATE collector_key SET due_at = oldest_at + interval '1 hour' WHERE key = 'b'`,
		},
		{
			"counts as done", `UPDATE collector SET key_version = 2, drained_key_version = 2`,
			`UPDATE collector SET key_version = 1, drained_key_version = 1`,
		},
		{
			"of no collector", `UPDATE collector_op SET collector = collector + 100 WHERE op_id = '4'`,
			`UPDATE collector_op SET collector = collector - 100 WHERE op_id = '4'`,
		},
	} {
		c.Exec(way.breaks)
		report := diagnose()
		if !slices.ContainsFunc(report.Violations, func(v doctor.Violation) bool {
			return v.Invariant == doctor.KeysAddUp && strings.Contains(v.What, way.says)
		}) {
			t.Errorf("after %s it found %v; want %q", way.breaks, report.Violations, way.says)
		}
		c.Exec(way.mends)
		if report := diagnose(); !report.OK() {
			t.Fatalf("after %s it found %v in what is whole", way.mends, report.Violations)
		}
	}
}
