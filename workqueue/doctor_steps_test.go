package workqueue_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue/doctor"
)

// What the steps of a run say of each other is checked too: each case does one kind of harm, and takes it back.
func TestDoctorComparesSteps(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Planned(storetest.Need("a"), storetest.Optional(storetest.Need("b")),
		storetest.Need("c", 0, 1)), 10)
	b.RecordStep(run, 0, 2)
	b.Record(storetest.Except(storetest.Whole(b.ClaimStep(run, 1, 1).Slices[0]), 1)) // of items 0 to 3
	b.WantAt(run, 2, storetest.StepTally{Ready: 3, Skipped: 1, Waiting: 6})
	b.Check()
	move := func(from, to string, bit string) string {
		return `UPDATE work_block SET ` + from + ` = set_bit(` + from + `, ` + bit + `, 0), ` + to + ` = set_bit(` + to +
			`, ` + bit + `, 1) WHERE run_id = $1 AND step = 2`
	}
	set := func(plane, bit, to string) string {
		return `UPDATE work_block SET ` + plane + ` = set_bit(` + plane + `, ` + bit + `, ` + to + `)
			WHERE run_id = $1 AND step = 2`
	}
	for _, harm := range []struct{ sql, back, what string }{
		{set("ready", "0", "0"), set("ready", "0", "1"), "lost"},
		{set("ready", "7", "1"), set("ready", "7", "0"), "before what it needs is there"},
		{set("skipped", "2", "0"), set("skipped", "2", "1"), "not left out, and what it needs has failed"},
		{set("skipped", "8", "1"), set("skipped", "8", "0"), "nothing that it needs has failed"},
		{move("ready", "done", "0"), move("done", "ready", "0"), "done, and the newest part is not a result"},
	} {
		b.Exec(harm.sql, run)
		report, err := doctor.New(b.Store).Doctor(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !slices.ContainsFunc(report.Violations, func(v doctor.Violation) bool {
			return strings.Contains(v.What, harm.what) && v.Step != nil && *v.Step == 2
		}) {
			t.Errorf("want %q, got %v", harm.what, report.Violations)
		}
		b.Exec(harm.back, run)
	}
	b.Check()
	b.RecordStep(run, 1)
	b.RecordStep(run, 2)
	b.WantState(run, "completed", 1)
	b.WantCounts(run, 9, 1)
	b.Check()
}
