package workqueue_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/doctor"
)

const (
	dropChecks = `ALTER TABLE work_block DROP CONSTRAINT work_block_disjoint, DROP CONSTRAINT work_block_within_size;`
	dropKey    = `ALTER TABLE work_result DROP CONSTRAINT work_result_pkey;`
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
		"key of work_result gone": {
			sql:  `SELECT $1::uuid`,
			want: doctor.OnePart, what: "no primary key", before: dropKey,
		},
		"column gone": { // which the other checks read
			sql:  `SELECT $1::uuid`,
			want: doctor.AsMigrated, what: "lacks the column run_step.gate_closed_at",
			before: `ALTER TABLE run_step DROP COLUMN gate_closed_at CASCADE;`,
		},
		"two parts": {
			before: dropKey, sql: `INSERT INTO work_result SELECT * FROM work_result WHERE run_id = $1 AND ordinal = 1`,
			want: doctor.OnePart, what: "two parts", items: []workqueue.Ordinal{1},
		},
		"reset without audit": {
			sql:  `UPDATE work_block SET done = set_bit(done, 2, 0), ready = set_bit(ready, 2, 1) WHERE run_id = $1`,
			want: doctor.AuditedReset, what: "without a later rerun", items: []workqueue.Ordinal{2},
		},
		"superseded without audit": {
			sql: `INSERT INTO work_result SELECT run_id, slice_id, ordinal, 2, step, result
				FROM work_result WHERE run_id = $1 AND ordinal = 1`,
			want: doctor.AuditedReset, what: "without a later rerun", items: []workqueue.Ordinal{1},
		},
		"done becomes failed": {
			sql:  `UPDATE work_block SET done = set_bit(done, 1, 0), failed = set_bit(failed, 1, 1) WHERE run_id = $1`,
			want: doctor.TruthsAgree, what: "not an error", items: []workqueue.Ordinal{1},
		},
		"done without part": {
			sql:  `DELETE FROM work_result WHERE run_id = $1 AND ordinal = 3`,
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
		"not requested": {
			sql: `UPDATE work_slice SET mask = set_bit(mask, 2, 0), remaining = set_bit(remaining, 2, 0)
				WHERE run_id = $1`,
			completed: true, want: doctor.AskedFor, what: "did not hold", items: []workqueue.Ordinal{2},
		},
		"counts of a slice": {
			sql:       `UPDATE work_slice SET done_items = done_items - 1, failed_items = failed_items + 1 WHERE run_id = $1`,
			completed: true, want: doctor.TruthsAgree, what: "counts other results or errors",
		},
		"part outside": {
			sql: `INSERT INTO work_result SELECT run_id, slice_id, 9000, generation, step, result
				FROM work_result WHERE run_id = $1 AND ordinal = 1`,
			completed: true, want: doctor.AskedFor, what: "outside every block",
		},
		"parts of no run": {
			sql: `INSERT INTO work_result SELECT gen_random_uuid(), slice_id, ordinal, generation, step, result
				FROM work_result WHERE run_id = $1 AND ordinal = 1`,
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
			report := testenv.Must(doctor.New(b.Store).Doctor(t.Context()))(t)
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
		report := testenv.Must(doctor.New(b.Store).Doctor(t.Context()))(t)
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

// TestDoctorChecksTrackers breaks trackers in each way that the doctor looks for. Before that it finds nothing.
func TestDoctorChecksTrackers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	open := func() (id uuid.UUID) {
		testenv.NoError(t, b.Store.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
			opened, err := tracker.OpenTracker(ctx, tx, tracker.OpenRequest{Owner: "o"})
			if err == nil {
				_, err = tracker.AddItems(ctx, tx, opened.ID, bitfield.Size+100, "")
			}
			if err == nil {
				_, err = tracker.AckItems(ctx, tx, []tracker.ItemsAck{{
					Batch: opened.ID, Items: []tracker.Ack{{Group: 1, Mask: bitfield.Full(50)}}, Code: "E",
				}})
			}
			id = opened.ID
			return err
		}))
		return id
	}
	diagnose := func() doctor.Report { return testenv.Must(doctor.New(b.Store).Doctor(ctx))(t) }
	ways := map[string]string{
		"groups that the batch":     `UPDATE tracker_batch SET groups = groups + 1 WHERE id = $1`,
		"groups with pending items": `UPDATE tracker_batch SET open_groups = 1 WHERE id = $1`,
		"items that the batch":      `UPDATE tracker_batch SET items = items - 1 WHERE id = $1`,
		"failed more than once": `INSERT INTO tracker_failed SELECT batch_id, grp, 'F', mask FROM tracker_failed
			WHERE batch_id = $1`,
		"failed and are pending": `UPDATE tracker_failed SET mask = ~B'0'::bit(8192) >> 50 WHERE batch_id = $1`,
		"past the end": `UPDATE tracker_failed SET mask = mask | set_bit(B'0'::bit(8192), 100, 1)
			WHERE batch_id = $1`,
		"nothing is pending": `UPDATE tracker_batch SET state = 'sealed', open_groups = 0 WHERE id = $1`,
		"without an event":   `UPDATE tracker_service SET event_id = gen_random_uuid() WHERE batch_id = $1`,
		"events too many": `INSERT INTO run_event (id, run_id, generation, kind, payload)
			SELECT gen_random_uuid(), $1, 1, 'tracker.completed', '{}' FROM generate_series(1, 2)`,
	}
	broken := map[string]uuid.UUID{}
	for name := range ways {
		broken[name] = open()
	}
	if report := diagnose(); !report.OK() {
		t.Fatalf("it found %v in what is whole", report.Violations)
	}
	for name, sql := range ways {
		b.Exec(sql, broken[name])
	}
	report := diagnose()
	for name, id := range broken {
		said := false
		for _, v := range report.Violations {
			said = said || strings.Contains(v.What, id.String()) && strings.Contains(v.What, name)
		}
		if !said {
			t.Errorf("it does not see %q: %v", name, report.Violations)
		}
	}
}
