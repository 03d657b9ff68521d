package database

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// Snapshot runs f in a read-only transaction that sees the database as it stood at one moment: what f reads with
// several statements adds up. Keep f short; while it runs, PostgreSQL cannot clean up behind anybody.
func (s *DB) Snapshot(ctx context.Context, f func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, s.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, f)
}
