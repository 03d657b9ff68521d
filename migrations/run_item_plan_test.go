package migrations_test

import (
	"regexp"
	"strconv"
	"testing"

	"github.com/jackc/pgx/v5"
)

var (
	loops   = regexp.MustCompile(`loops=(\d+)`)
	removed = regexp.MustCompile(`Rows Removed by (?:Join )?Filter: (\d+)`)
)

// Of a run that has just been loaded, PostgreSQL knows nothing until it has been analyzed, a minute later: its items
// are in a partition of their own. What the view is asked then compares no item with another, and finds one by its key.
func TestItemsAreFoundBeforeAnyStatistics(t *testing.T) {
	t.Parallel()
	const items = 200_000
	r := newItemRun(t, items, 0)
	for _, ask := range []struct {
		sql  string
		args []any
	}{
		{`SELECT state, count(*) FROM run_item WHERE run_id = $1 GROUP BY 1`, []any{r.id}},
		{`SELECT step_name, state, max(key), max(attempts) FROM run_item GROUP BY 1, 2`, nil},
		{`SELECT * FROM run_item WHERE run_id = $1 AND key = $2`, []any{r.id, "C9999"}},
	} {
		read, times := 0, 0
		for _, line := range r.explain(ask.sql, ask.args...) {
			if m := loops.FindStringSubmatch(line); m != nil {
				times, _ = strconv.Atoi(m[1])
			}
			if m := removed.FindStringSubmatch(line); m != nil {
				n, _ := strconv.Atoi(m[1])
				read += n * times
			}
		}
		if most := items / 10; read > most {
			t.Errorf("%s reads %d rows in vain; want at most %d", ask.sql, read, most)
		}
	}
}

// explain runs a statement and returns how PostgreSQL went about it.
func (r *itemRun) explain(sql string, args ...any) (plan []string) {
	r.Helper()
	rows, err := r.pool.Query(r.Context(), `EXPLAIN (ANALYZE, TIMING off) `+sql, args...)
	if err == nil {
		plan, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if err != nil {
		r.Fatal(err)
	}
	return plan
}
