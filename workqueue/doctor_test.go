package workqueue_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/doctor"
	"github.com/tranchehq/tranche/workqueue/redo"
)

const (
	dropChecks = `ALTER TABLE work_block DROP CONSTRAINT work_block_disjoint, DROP CONSTRAINT work_block_within_size;`
	dropKey    = `ALTER TABLE work_part DROP CONSTRAINT work_part_pkey;`
)

// Every check has to see the harm it is there for: each case does one kind by SQL.
func TestDoctorNamesWhatIsWrong(t *testing.T) {
	t.Parallel()
	for name, harm := range map[string]struct {
		before    string // to get past the schema's own guards
		sql       string // $1 is the run
		completed bool   // of the completed run
		want      doctor.Invariant
		what      string
		items     []workqueue.Ordinal
	}{
		"two planes": {
			before: dropChecks, sql: `UPDATE work_block SET ready = set_bit(ready, 2, 1) WHERE run_id = $1`,
			want: doctor.ItemsAddUp, what: "two planes", items: []workqueue.Ordinal{2},
		},
		"past size": {
			before: dropChecks, sql: `UPDATE work_block SET ready = set_bit(ready, 10, 1) WHERE run_id = $1`,
			want: doctor.ItemsAddUp, what: "past the end", items: []workqueue.Ordinal{10},
		},
		"lost item": {
			sql:  `UPDATE work_block SET ready = set_bit(ready, 8, 0) WHERE run_id = $1`,
			want: doctor.ItemsAddUp, what: "lost", items: []workqueue.Ordinal{8},
		},
		"ready and live": {
			sql:  `UPDATE work_block SET ready = set_bit(ready, 5, 1) WHERE run_id = $1`,
			want: doctor.ItemsAddUp, what: "ready, and in a live slice", items: []workqueue.Ordinal{5},
		},
		"final and live": {
			sql: `UPDATE work_slice SET mask = set_bit(mask, 3, 1), remaining = set_bit(remaining, 3, 1)
				WHERE run_id = $1 AND state = 'claimed'`,
			want: doctor.ItemsAddUp, what: "final, and in a live slice", items: []workqueue.Ordinal{3},
		},
		"two live slices": {
			sql: `INSERT INTO work_slice (id, run_id, step, block, generation, mask, remaining, state, attempt, cause, deadline)
				SELECT gen_random_uuid(), run_id, step, block, generation, mask, remaining, state, 2, cause, deadline
				FROM work_slice WHERE run_id = $1 AND state = 'claimed'`,
			want: doctor.ItemsAddUp, what: "two live slices", items: []workqueue.Ordinal{4, 5, 6},
		},
		"row of work_queue gone": {
			sql:  `DELETE FROM work_queue WHERE run_id = $1 AND ordinal = 9`,
			want: doctor.ItemsAddUp, what: "work_queue",
		},
		"block gone": {
			before: `ALTER TABLE work_slice DROP CONSTRAINT work_slice_run_id_step_block_fkey;`,
			sql:    `DELETE FROM work_block WHERE run_id = $1`,
			want:   doctor.ItemsAddUp, what: "sizes",
		},
		"key of work_part gone": {
			sql:  `SELECT $1::uuid`,
			want: doctor.OnePart, what: "no primary key", before: dropKey,
		},
		"two parts": {
			before: dropKey, sql: `INSERT INTO work_part SELECT * FROM work_part WHERE run_id = $1 AND ordinal = 1`,
			want: doctor.OnePart, what: "two parts", items: []workqueue.Ordinal{1},
		},
		"reset without audit": {
			sql:  `UPDATE work_block SET done = set_bit(done, 2, 0), ready = set_bit(ready, 2, 1) WHERE run_id = $1`,
			want: doctor.AuditedReset, what: "without a later re-run", items: []workqueue.Ordinal{2},
		},
		"superseded without audit": {
			sql: `INSERT INTO work_part SELECT run_id, slice_id, ordinal, 2, step, result
				FROM work_part WHERE run_id = $1 AND ordinal = 1`,
			want: doctor.AuditedReset, what: "without a later re-run", items: []workqueue.Ordinal{1},
		},
		"done becomes failed": {
			sql:  `UPDATE work_block SET done = set_bit(done, 1, 0), failed = set_bit(failed, 1, 1) WHERE run_id = $1`,
			want: doctor.TruthsAgree, what: "not an error", items: []workqueue.Ordinal{1},
		},
		"done without part": {
			sql:  `DELETE FROM work_part WHERE run_id = $1 AND ordinal = 3`,
			want: doctor.TruthsAgree, what: "not a result", items: []workqueue.Ordinal{3},
		},
		"pending in the tracker": {
			sql:  `UPDATE tracker_group SET pending = set_bit(pending, 1, 1) WHERE batch_id = $1`,
			want: doctor.TruthsAgree, what: "still pending", items: []workqueue.Ordinal{1},
		},
		"acked in the tracker": {
			sql:  `UPDATE tracker_group SET pending = set_bit(pending, 9, 0) WHERE batch_id = $1`,
			want: doctor.TruthsAgree, what: "not pending", items: []workqueue.Ordinal{9},
		},
		"group gone": {
			sql:  `DELETE FROM tracker_group WHERE batch_id = $1`,
			want: doctor.TruthsAgree, what: "no group",
		},
		"open groups": {
			sql:  `UPDATE tracker_batch SET open_groups = 0 WHERE id = $1`,
			want: doctor.TruthsAgree, what: "open_groups",
		},
		"completed too early": {
			sql:  `UPDATE batchrun SET state = 'completed', done = 10, failed = 0, finished_at = tranche_now() WHERE id = $1`,
			want: doctor.TruthsAgree, what: "its tracker is",
		},
		"never completed": {
			sql: `UPDATE batchrun SET state = 'running' WHERE id = $1`, completed: true,
			want: doctor.TruthsAgree, what: "its tracker is completed",
		},
		"counts": {
			sql: `UPDATE batchrun SET done = 3, failed = 1 WHERE id = $1`, completed: true,
			want: doctor.TruthsAgree, what: "counts differ",
		},
		"slice gone": {
			sql: `DELETE FROM work_slice WHERE run_id = $1`, completed: true,
			want: doctor.AskedFor, what: "does not exist", items: []workqueue.Ordinal{0, 1, 2, 3},
		},
		"not asked for": {
			sql: `UPDATE work_slice SET mask = set_bit(mask, 2, 0), remaining = set_bit(remaining, 2, 0)
				WHERE run_id = $1`,
			completed: true, want: doctor.AskedFor, what: "did not hold", items: []workqueue.Ordinal{2},
		},
		"part outside": {
			sql: `INSERT INTO work_part SELECT run_id, slice_id, 9000, generation, step, result
				FROM work_part WHERE run_id = $1 AND ordinal = 1`,
			completed: true, want: doctor.AskedFor, what: "outside every block",
		},
		"parts of no run": {
			sql: `INSERT INTO work_part SELECT gen_random_uuid(), slice_id, ordinal, generation, step, result
				FROM work_part WHERE run_id = $1 AND ordinal = 1`,
			completed: true, want: doctor.AskedFor, what: "a run that does not exist",
		},
		"two completions": {
			before: `DROP INDEX run_event_completion;`,
			sql: `INSERT INTO run_event SELECT gen_random_uuid(), run_id, generation, kind, payload
				FROM run_event WHERE run_id = $1 AND kind = 'completed'`,
			completed: true, want: doctor.OneCompletion, what: "completion events of one generation",
		},
		"no completion": {
			sql: `DELETE FROM run_event WHERE run_id = $1 AND kind = 'completed'`, completed: true,
			want: doctor.OneCompletion, what: "no completion event",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, run, done := storetest.Scene(t)
			if harm.completed {
				run = done
			}
			if harm.before != "" {
				b.Exec(harm.before)
			}
			b.Exec(harm.sql, run)
			report, err := doctor.New(b.Store).Doctor(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			found := slices.ContainsFunc(report.Violations, func(v doctor.Violation) bool {
				return v.Invariant == harm.want && strings.Contains(v.What, harm.what) &&
					(harm.items == nil || slices.Equal(v.Ordinals, harm.items) && *v.Run == run)
			})
			if !found || report.OK() {
				t.Errorf("want %s %q %v, got %v", harm.want, harm.what, harm.items, report.Violations)
			}
		})
	}
}

// An audited re-run is not a violation, neither before nor after its items are final again.
func TestDoctorAllowsAuditedReruns(t *testing.T) {
	t.Parallel()
	b, run, _ := storetest.Scene(t)
	_, err := redo.New(b.Store).Rerun(t.Context(), redo.RerunRequest{
		Run: run, Select: redo.Selection{Failed: true}, Actor: "test",
	})
	if err != nil {
		t.Fatal(err)
	}
	b.Check()
	b.Record(storetest.Whole(b.One(run)))
	b.Check()
	testenv.Rewrite(t, b.Pool, `DELETE FROM audit_log WHERE run_id = $1 AND action = 'rerun'`, run)
	report, err := doctor.New(b.Store).Doctor(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if report.OK() || report.Violations[0].Invariant != doctor.AuditedReset {
		t.Errorf("without its audit row the re-run should be an I3: %v", report.Violations)
	}
}
