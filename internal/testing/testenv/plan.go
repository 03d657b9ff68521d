package testenv

import (
	"encoding/json"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Plan returns the lines of a prepared statement's plan, in a transaction that begins with settings.
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
	NoError(t, err)
	return lines
}

var scan = regexp.MustCompile(`(Seq|Index|Index Only|Bitmap Heap) Scan(?: Backward)?(?: using (\w+))? on (\w+)`)

// neverByID are the scan without an index, and indexes of runs that cannot find one by its ID.
var neverByID = []string{"", "batchrun_active", "batchrun_namespace"}

// WholeScans returns the lines of a plan that read a whole growing table. Reads of the first endpoint names from the
// start of two indexes are allowed.
func WholeScans(plan string) (bad []string) {
	lines := append(strings.Split(plan, "\n"), "")
	for i, line := range lines[:len(lines)-1] {
		found := scan.FindStringSubmatch(line)
		if len(found) == 0 || found[3] == "node_session" || found[3] == "namespace" ||
			strings.HasPrefix(found[3], "collector") { // they are small
			continue
		}
		first := found[2] == "work_block_turn" || found[2] == "work_slice_waiting"
		if slices.Contains(neverByID, found[2]) || !first && !strings.Contains(lines[i+1], "Index Cond: ") {
			bad = append(bad, strings.TrimSpace(line))
		}
	}
	return bad
}

type planNode struct {
	Relation string  `json:"Relation Name"`
	Rows     float64 `json:"Actual Rows"`
	Loops    float64 `json:"Actual Loops"`
	Filtered float64 `json:"Rows Removed by Filter"`
	Checked  float64 `json:"Rows Removed by Index Recheck"`
	Plans    []planNode
}

func (n *planNode) read(of map[string]int) {
	if n.Relation != "" {
		of[n.Relation] += int((n.Rows + n.Filtered + n.Checked) * n.Loops)
	}
	for i := range n.Plans {
		n.Plans[i].read(of)
	}
}

// RowsRead runs a statement, and returns the rows read per table, including filtered ones, and the plan.
func RowsRead(t testing.TB, conn *pgxpool.Conn, settings, statement string) (of map[string]int, plan string) {
	t.Helper()
	err := pgx.BeginFunc(t.Context(), conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), settings); err != nil {
			return err
		}
		return tx.QueryRow(t.Context(), `EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) `+statement,
			pgx.QueryExecModeSimpleProtocol).Scan(&plan)
	})
	var root []struct{ Plan planNode }
	if err == nil {
		err = json.Unmarshal([]byte(plan), &root)
	}
	if err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
	of = map[string]int{}
	root[0].Plan.read(of)
	return of, plan
}
