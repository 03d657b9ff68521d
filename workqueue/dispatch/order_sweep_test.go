package dispatch_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// The leader ends what waits in stopped lanes of every run, although it cannot for one.
func TestARunWhoseStoppedLinesCannotBeEndedKeepsNoOther(t *testing.T) {
	t.Parallel()
	b := setup(t)
	stopped := func() workqueue.RunID {
		req := storetest.Request()
		req.Order = byValue(true)
		run := b.loadLines(req, "a", "a", "a")
		b.Record(storetest.Except(storetest.Whole(b.wantClaims(run, 0)[0]), 0))
		return run
	}
	first, second := stopped(), stopped()
	b.Exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not this one'; END $$`)
	b.Exec(fmt.Sprintf(`CREATE TRIGGER refuse BEFORE INSERT ON work_slice FOR EACH ROW WHEN (NEW.run_id = '%s')
		EXECUTE FUNCTION refuse()`, first))
	n, err := settle.New(b.Store).EndStopped(t.Context(), b.Lead())
	if n != 2 || err == nil || !strings.Contains(err.Error(), "not this one") {
		t.Errorf("ended %d items, %v; want those 2 of the second run, and the error of the first", n, err)
	}
	b.WantState(second, "completed", 1)
	b.Exec(`DROP TRIGGER refuse ON work_slice`)
	if n, err := settle.New(b.Store).EndStopped(t.Context(), b.Lead()); n != 2 || err != nil {
		t.Errorf("then ended %d items, %v; want 2", n, err)
	}
	b.WantState(first, "completed", 1)
	b.Check()
}

// stand takes the heads of a run's lanes away from where they can be claimed: it is at rest, and its lanes have heads.
func (b *bench) stand(run workqueue.RunID) {
	b.Helper()
	b.Exec(`UPDATE work_block SET ready = B'0'::bit(8192) WHERE run_id = $1`, run)
}

// A run at rest whose lanes need no help keeps neither the runs after it nor, however many lanes it has, those of its
// lanes that do need it.
func TestLinesThatStandAreFoundBehindOthersThatDoNot(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.stand(b.loadLines(storetest.Request(), "a", "a"))

	const lanes = 2500
	var values []string
	for i := range lanes {
		values = append(values, fmt.Sprint(i), fmt.Sprint(i))
	}
	many := b.loadLines(storetest.Request(), values...)
	b.stand(many)
	b.Exec(`UPDATE work_lane SET head = NULL WHERE run_id = $1
		AND lane IN (SELECT lane FROM work_lane WHERE run_id = $1 ORDER BY lane DESC LIMIT 3)`, many)

	last := b.loadLines(storetest.Request(), "a", "a")
	b.stand(last)
	b.Exec(`UPDATE work_lane SET head = NULL WHERE run_id = $1`, last)

	if n, err := redo.New(b.Store).RepairLanes(t.Context(), b.Lead()); n != 4 || err != nil {
		t.Fatalf("moved on %d lanes, %v; want 3 and 1", n, err)
	}
	b.wantClaims(last, 1)
}
