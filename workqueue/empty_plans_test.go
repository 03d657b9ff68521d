package workqueue

import (
	"regexp"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testenv"
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
		return strings.Join(testenv.Plan(t, pool, statement, arguments, planOnce), "\n")
	}
	const look = `32, '{}', '{}', '{}', '{}', '{}', '{}', 8, 64, NULL, '{}', 256`
	const steps = `'{}', '{}'`
	for name, p := range map[string]string{
		"look": plan(runnable, look), "steps' locks": plan(lockFreeSteps, steps), "paces' locks": plan(lockFreePaces, steps),
		"steps": plan(loadSteps, steps+`, '{}'`), "paces": plan(loadPaces, steps), "rivals": plan(rivals, steps+`, 65`),
		"due slices": plan(dueSlices, steps+`, '{}'`), "ready blocks": plan(readyBlocks, steps+`, '{}', 100`),
		"completions": plan(completeRuns, `'{}'`),
	} {
		if bad := wholeScans(p); len(bad) > 0 {
			t.Errorf("the plan of the %s goes through everything:\n%s", name, strings.Join(bad, "\n"))
			t.Log(p)
		}
	}
	careless := plan(strings.ReplaceAll(runnable, readyThere, `b.has_ready`), look)
	if len(wholeScans(careless)) == 0 {
		t.Errorf("nothing is found in a plan that is bad:\n%s", careless)
	}
}

var scan = regexp.MustCompile(`(Seq|Index|Index Only|Bitmap Heap) Scan(?: Backward)?(?: using (\w+))? on (\w+)`)

// wholeScans are the lines of a plan that read all there is in a table that grows. The first names of endpoints are
// read from the beginnings of two indexes.
func wholeScans(plan string) (bad []string) {
	lines := append(strings.Split(plan, "\n"), "")
	for i, line := range lines[:len(lines)-1] {
		found := scan.FindStringSubmatch(line)
		if len(found) == 0 || found[3] == "node_session" || strings.HasPrefix(found[3], "collector") { // they are few
			continue
		}
		first := found[2] == "work_block_turn" || found[2] == "work_slice_waiting"
		if found[2] == "" || found[2] == "batchrun_active" || !first && !strings.Contains(lines[i+1], "Index Cond: ") {
			bad = append(bad, strings.TrimSpace(line))
		}
	}
	return bad
}
