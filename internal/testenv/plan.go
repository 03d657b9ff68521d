package testenv

import (
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
