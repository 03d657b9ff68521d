package tracker_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// TestGroupsAreFoundByKey reads the plans that connections keep, made while there was nothing and while there was much:
// each mask finds its group by the key. Else a commit about a hundred runs compares each group with each mask, and
// reads all groups of a large run.
func TestGroupsAreFoundByKey(t *testing.T) {
	t.Parallel()
	pool := testenv.Pool(t)
	keyless := strings.Replace(tracker.Statements["ack"], "AND g.grp = w.grp", "AND g.grp + 0 = w.grp", 1)
	if plan := keptPlan(t, pool, keyless); !goesThroughGroups(plan) { // no index has the sum
		t.Errorf("nothing is found in a plan that is bad:\n%s", strings.Join(plan, "\n"))
	}
	for _, first := range []string{`SELECT`, `
		INSERT INTO tracker_batch (id, owner, state) SELECT gen_random_uuid(), 'test', 'open' FROM generate_series(1, 200)`, `
		INSERT INTO tracker_group (batch_id, grp, size, pending)
		SELECT id, g, 9, B'0'::bit(8192) FROM tracker_batch, generate_series(0, 9) g`, `ANALYZE`} {
		testenv.Must(pool.Exec(t.Context(), first))(t)
		for name, statement := range tracker.Statements {
			if plan := keptPlan(t, pool, statement); goesThroughGroups(plan) {
				t.Errorf("after %s, %s goes through groups:\n%s", first, name, strings.Join(plan, "\n"))
			}
		}
	}
}

// goesThroughGroups says whether a plan reads groups that no one named.
func goesThroughGroups(plan []string) bool {
	for i, line := range plan {
		if strings.Contains(line, " Scan") && strings.Contains(line, " on tracker_group ") &&
			!strings.Contains(plan[i+1], "(grp = ") {
			return true
		}
	}
	return false
}

// keptPlan is the plan of a statement about groups that is prepared now and finds rows by keys.
func keptPlan(t *testing.T, pool *pgxpool.Pool, statement string) []string {
	t.Helper()
	plan := testenv.Plan(t, pool, statement, `'{}', '{}', '{}', '{}'`, tracker.ByKey,
		`SET LOCAL plan_cache_mode = force_generic_plan`)
	return append(plan, "")
}
