package orchestrator_test

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/retention"
)

// retaining is a node that leads, with finished runs.
type retaining struct {
	leaders
}

func setupRetaining(t *testing.T) *retaining {
	t.Helper()
	b := bare(t)
	// The node leads on while the machine stands still: who begins to lead begins anew with what it deletes.
	b.Node = b.StartNodeWith(t, orchestrator.Config{LeaseTTL: 20 * time.Second})
	b.Serve(t, "echo", nodetest.Echo)
	return &retaining{leaders{T: t, bundle: *b}}
}

// ended makes a run that ended two hours ago.
func (r *retaining) ended(items int) workqueue.RunID {
	r.Helper()
	run := r.bundle.Start(r.T, nodetest.Request("echo"), items)
	r.completed(run)
	r.exec(`UPDATE batchrun SET finished_at = finished_at - interval '2 hours' WHERE id = $1`, run)
	return run
}

func (r *retaining) exec(sql string, args ...any) {
	r.Helper()
	if _, err := r.Pool.Exec(r.Context(), sql, args...); err != nil {
		r.Fatal(err)
	}
}

// refuse has PostgreSQL break off a statement about rows for which a condition holds.
func (r *retaining) refuse(when, rows, condition, code string) {
	r.Helper()
	r.exec(`CREATE FUNCTION refuse_` + when + `() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN IF ` + condition + ` THEN RAISE 'the test breaks it off' USING ERRCODE = '` + code + `'; END IF;
		RETURN coalesce(NEW, OLD); END $$`)
	r.exec(`CREATE TRIGGER refuse_` + when + ` ` + rows + ` EXECUTE FUNCTION refuse_` + when + `()`)
}

// outOfTime is the code of a statement that a limit of time has ended.
const outOfTime = "57014"

func (r *retaining) limit(limits retention.Limits) {
	r.Helper()
	if _, err := retention.New(r.Store).SetRetention(r.Context(), retention.RetainRuns, limits, "ann"); err != nil {
		r.Fatal(err)
	}
}

func (r *retaining) number(sql string, args ...any) (n int64) {
	r.Helper()
	if err := r.Pool.QueryRow(r.Context(), sql, args...).Scan(&n); err != nil {
		r.Fatal(err)
	}
	return n
}

// untilRetained wakes the duty until a count is so large.
func (r *retaining) untilRetained(what string, want int64, sql string, args ...any) {
	r.Helper()
	nodetest.Until(r.T, what, func() bool {
		r.Node.WakeDuty(orchestrator.DutyRetention)
		return r.number(sql, args...) == want
	})
}

// goneRun counts runs of which nothing is left.
const goneRun = `SELECT count(*) FROM retention_run WHERE run_id = $1 AND gone_at IS NOT NULL`

// Rows of any size are deleted: what PostgreSQL does not get done in time is tried with less, down to a single row.
func TestADeletionThatTakesTooLongGoesOnInSmallerPieces(t *testing.T) {
	t.Parallel()
	r := setupRetaining(t)
	run := r.ended(40)
	r.exec(`INSERT INTO quarantine (reason, detail, subject, body, at)
		SELECT 'r', 'd', 's', 'x', tranche_now() - interval '1 year' FROM generate_series(1, 20)`)
	r.refuse("rows", `AFTER DELETE ON work_queue REFERENCING OLD TABLE AS gone FOR EACH STATEMENT`,
		`(SELECT count(*) FROM gone) > 1`, outOfTime)
	r.refuse("messages", `AFTER DELETE ON quarantine REFERENCING OLD TABLE AS gone FOR EACH STATEMENT`,
		`(SELECT count(*) FROM gone) > 1`, outOfTime)
	age := time.Hour
	r.limit(retention.Limits{Age: &age})
	r.untilRetained("the run is gone", 1, goneRun, run)
	r.untilRetained("old messages are gone", 0, `SELECT count(*) FROM quarantine`)
}

// Of one run nothing can be deleted, and what is left of another one cannot either; what is of all others is.
func TestARunThatCannotBeDeletedKeepsNothingElse(t *testing.T) {
	t.Parallel()
	r := setupRetaining(t)
	whole, stuck, run, later := r.ended(9), r.ended(9), r.ended(9), r.ended(9)
	r.exec(`INSERT INTO quarantine (reason, detail, subject, body, at)
		VALUES ('r', 'd', 's', 'x', tranche_now() - interval '1 year')`)
	r.refuse("rows", `BEFORE DELETE ON work_queue FOR EACH ROW`, `OLD.run_id = '`+stuck.String()+`'`, "P0001")
	r.refuse("run", `BEFORE DELETE ON batchrun FOR EACH ROW`, `OLD.id = '`+whole.String()+`'`, "P0001")
	two := int64(2)
	r.limit(retention.Limits{Count: &two})
	r.untilRetained("the first run is being deleted", 1,
		`SELECT count(*) FROM retention_run WHERE run_id = $1 AND gone_at IS NULL`, stuck)
	age := time.Hour
	r.limit(retention.Limits{Age: &age})
	for _, run := range []workqueue.RunID{run, later} {
		r.untilRetained("another run is gone", 1, goneRun, run)
	}
	r.untilRetained("old messages are gone", 0, `SELECT count(*) FROM quarantine`)
	nodetest.Until(r.T, "the node says what went wrong", func() bool {
		nodes, err := inspect.New(r.Store).Nodes(r.Context())
		return err == nil && slices.ContainsFunc(nodes.Duties, func(d inspect.DutyView) bool {
			return d.Name == orchestrator.DutyRetention && d.Failing && strings.Contains(d.LastError, "the test breaks it off")
		})
	})
	if r.number(goneRun, stuck) != 0 {
		t.Error("the run that cannot be deleted is gone")
	}
	if _, err := inspect.New(r.Store).Resolve(t.Context(), whole.String()); err != nil {
		t.Errorf("the run of which nothing can be deleted: %v", err)
	}
}

// Runs that take too long to measure are measured fewer at a time, or guessed, and those that cannot be measured at all
// keep no run from being deleted by its age or number.
func TestRunsThatCannotBeMeasured(t *testing.T) {
	t.Parallel()
	r := setupRetaining(t)
	huge := r.ended(9)
	var runs []workqueue.RunID
	for range 4 {
		runs = append(runs, r.ended(9))
	}
	r.exec(`UPDATE work_block SET result_bytes = 1 << 30 WHERE run_id = $1`, huge)
	r.refuse("sizes", `AFTER INSERT ON retention_size REFERENCING NEW TABLE AS sized FOR EACH STATEMENT`,
		`(SELECT count(*) > 2 OR max(bytes) > 1 << 30 FROM sized)`, outOfTime)
	large := int64(1 << 30)
	r.limit(retention.Limits{Bytes: &large})
	r.untilRetained("all runs have a size", 5, `SELECT count(*) FROM retention_size`)
	if n := r.number(`SELECT bytes FROM retention_size WHERE run_id = $1`, huge); n != 4096+9*(150+150) {
		t.Errorf("a run of 9 items is guessed to have %d bytes", n)
	}
	if n := r.number(`SELECT max(n) FROM (SELECT count(*) AS n FROM retention_size GROUP BY xmin::text) s`); n != 2 {
		t.Errorf("after those that took too long up to %d runs were measured at once; want 2", n)
	}
	r.exec(`DROP TRIGGER refuse_sizes ON retention_size`)
	r.exec(`DELETE FROM retention_size`)
	r.refuse("all", `BEFORE INSERT ON retention_size FOR EACH ROW`, `true`, "P0001")
	one := int64(1)
	r.limit(retention.Limits{Bytes: &large, Count: &one})
	for _, run := range runs[:3] {
		r.untilRetained("a run is gone", 1, goneRun, run)
	}
	if _, err := inspect.New(r.Store).Resolve(t.Context(), huge.String()); !errors.Is(err, workqueue.ErrNotFound) {
		t.Errorf("the oldest run: %v", err)
	}
}
