package testenv

import (
	"regexp"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Plan returns the lines of the plan of a statement with such arguments that is prepared now, in a transaction that
// begins with settings.
func Plan(t testing.TB, pool *pgxpool.Pool, statement, arguments string, settings ...string) (lines []string) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
		for _, sql := range append(settings, `DEALLOCATE ALL`, `PREPARE look AS `+statement) {
			if _, err := tx.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol); err != nil {
				return err
			}
		}
		rows, err := tx.Query(t.Context(), `EXPLAIN (COSTS OFF) EXECUTE look(`+arguments+`)`,
			pgx.QueryExecModeSimpleProtocol)
		if err != nil {
			return err
		}
		lines, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

var scan = regexp.MustCompile(`(Seq|Index|Index Only|Bitmap Heap) Scan(?: Backward)?(?: using (\w+))? on (\w+)`)

// WholeScans are the lines of a plan that read all there is in a table that grows. The first names of endpoints are
// read from the beginnings of two indexes.
func WholeScans(plan string) (bad []string) {
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
