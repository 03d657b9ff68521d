package pg

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Querier is a pool, a connection or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Rows are those of a query, for the functions of pgx that read rows and close them: an error of the query is theirs,
// too, and those return it.
func Rows(ctx context.Context, from Querier, sql string, args ...any) pgx.Rows {
	rows, _ := from.Query(ctx, sql, args...)
	return rows
}

// Collect reads all rows of a query: a list, which is not nil without an error. It is for statements that are sent
// alone, whose rows are read by a function of pgx or one with a name: not for batches and function literals.
func Collect[T any](
	ctx context.Context, from Querier, read pgx.RowToFunc[T], sql string, args ...any,
) ([]T, error) {
	return pgx.CollectRows(Rows(ctx, from, sql, args...), read)
}

// One reads the row of a query. The error is pgx.ErrNoRows when there is none, pgx.ErrTooManyRows when there are more.
func One[T any](ctx context.Context, from Querier, read pgx.RowToFunc[T], sql string, args ...any) (T, error) {
	return pgx.CollectExactlyOneRow(Rows(ctx, from, sql, args...), read)
}

// Limit is how many rows a page has for who asks for so many; 0: as usual.
func Limit(asked, usual, most int) int {
	if asked <= 0 {
		return usual
	}
	return min(asked, most)
}
