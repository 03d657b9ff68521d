package settle

import (
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// Completions are planned once and well, even when there is nothing yet.
func TestPlanOfCompletionsInEmptyTables(t *testing.T) {
	t.Parallel()
	pool := testenv.Connect(t, testenv.Database(t))
	if _, err := pool.Exec(t.Context(), `ANALYZE`); err != nil {
		t.Fatal(err)
	}
	plan := strings.Join(testenv.Plan(t, pool, completeRuns, `'{}'`, plane.PlanOnce),
		"\n")
	if bad := testenv.WholeScans(plan); len(bad) > 0 {
		t.Errorf("the plan goes through everything:\n%s\n%s", strings.Join(bad, "\n"), plan)
	}
}
