package dispatch

import (
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testenv"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// What is planned once is planned well, even when there is nothing yet: rows are found by an index and its first
// columns, not by going through all that an index has.
func TestPlansOfEmptyTables(t *testing.T) {
	t.Parallel()
	pool := testenv.Connect(t, testenv.Database(t))
	if _, err := pool.Exec(t.Context(), `ANALYZE`); err != nil {
		t.Fatal(err)
	}
	plan := func(statement, arguments string) string {
		return strings.Join(testenv.Plan(t, pool, statement, arguments, plane.PlanOnce), "\n")
	}
	const look = `32, '{}', '{}', '{}', '{}', '{}', '{}', 8, 64, NULL, '{}', 256`
	const steps = `'{}', '{}'`
	for name, p := range map[string]string{
		"look": plan(searchRunnable, look), "steps' locks": plan(lockFreeSteps, steps), "paces' locks": plan(lockFreePaces,
			steps),
		"steps": plan(loadSteps, steps+`, '{}'`), "paces": plan(loadPaces, steps), "rivals": plan(rivals, steps+`, 65`),
		"due slices": plan(dueSlices, steps+`, '{}'`), "ready blocks": plan(readyBlocks, steps+`, '{}', 100`),
	} {
		if bad := testenv.WholeScans(p); len(bad) > 0 {
			t.Errorf("the plan of the %s goes through everything:\n%s", name, strings.Join(bad, "\n"))
			t.Log(p)
		}
	}
	careless := plan(strings.ReplaceAll(searchRunnable, plane.ReadyThere, `b.has_ready`), look)
	if len(testenv.WholeScans(careless)) == 0 {
		t.Errorf("nothing is found in a plan that is bad:\n%s", careless)
	}
}
