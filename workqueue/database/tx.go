package database

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

const (
	// maxTxAttempts bounds how often a transaction that met a deadlock or a serialization failure is run again.
	maxTxAttempts = 8
	// TxTimeout bounds one attempt. A connection that has gone silent is given up after it.
	TxTimeout = 15 * time.Second
	// OperatorTimeout bounds a re-run or a cancel, which may touch every block of a large run.
	OperatorTimeout = 2 * time.Minute
	// LoadTimeout bounds a transaction that writes megabytes of items.
	LoadTimeout = time.Minute
)

// InTx runs f in a transaction, and runs it again as a whole when PostgreSQL broke it off as a deadlock (40P01) or a
// serialization failure (40001). f must therefore keep its effects in the transaction, and must use the context that it
// is given. The transaction begins with f's first statement and in the same round trip; what f leaves to [pg.Later] is
// committed in the round trip that brings it.
func (s *DB) InTx(ctx context.Context, f func(ctx context.Context, tx pgx.Tx) error) error {
	return s.InTxWithin(ctx, TxTimeout, f)
}

// InTxWithin is [DB.InTx] with a limit of its own for each attempt.
func (s *DB) InTxWithin(ctx context.Context, limit time.Duration,
	f func(ctx context.Context, tx pgx.Tx) error,
) error {
	for attempt := 1; ; attempt++ {
		err := s.tryTx(ctx, limit, f)
		if err == nil || attempt == maxTxAttempts || !retryable(err) {
			return err
		}
		if backoff.Sleep(ctx, rand.N(time.Duration(attempt)*5*time.Millisecond)) != nil {
			return fmt.Errorf("retry transaction: %w", context.Cause(ctx))
		}
	}
}

func (s *DB) tryTx(ctx context.Context, limit time.Duration, f func(ctx context.Context, tx pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, err := s.Pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release() // one that is not at rest, after a panic or in trouble, is closed
	tx := pg.NewPipelined(ctx, conn.Conn(), s.settings)
	if err := f(ctx, tx); err != nil {
		_ = tx.Rollback(ctx) // when it fails the connection is gone, and the transaction with it
		return err
	}
	return tx.Commit(ctx)
}

func retryable(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "40P01" || pg.Code == "40001")
}
