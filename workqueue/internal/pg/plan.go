package pg

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// RowQuerier is a pool or a transaction, for one row.
type RowQuerier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}
