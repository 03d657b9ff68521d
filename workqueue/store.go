package workqueue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Store is PostgreSQL as Tranche sees it. It is safe for concurrent use.
type Store struct {
	pool     *pgxpool.Pool
	sessions *pgxpool.Pool // for heartbeats and leases, so that they need not queue for a connection
	parts    sync.Pool     // *copyRows: buffers of past recordings, some megabytes each
	graphs   graphCache    // of the runs that it had to do with lately
	mute     muteWatch
	errors   errorsCache // of the runs whose errors were looked at lately
}

// New returns a store on a pool whose database has been migrated. The store does not close the pool. See also [Open].
func New(pool *pgxpool.Pool) *Store { return &Store{pool: pool, sessions: pool} }

const (
	// maxTxAttempts bounds how often a transaction that met a deadlock or a serialization failure is run again.
	maxTxAttempts = 8
	// txTimeout bounds one attempt. A connection that has gone mute is given up after it.
	txTimeout = 15 * time.Second
	// operatorTimeout bounds a re-run or a cancel, which may touch every block of a large run.
	operatorTimeout = 2 * time.Minute
	// loadTimeout bounds a transaction that writes megabytes of items.
	loadTimeout = time.Minute
)

// inTx runs f in a transaction, and runs it again as a whole when PostgreSQL broke it off as a deadlock (40P01) or a
// serialization failure (40001). f must therefore keep its effects in the transaction, and must use the context that it
// is given.
func (s *Store) inTx(ctx context.Context, f func(ctx context.Context, tx pgx.Tx) error) error {
	return s.inTxWithin(ctx, txTimeout, f)
}

func (s *Store) inTxWithin(ctx context.Context, limit time.Duration,
	f func(ctx context.Context, tx pgx.Tx) error,
) error {
	for attempt := 1; ; attempt++ {
		err := s.tryTx(ctx, limit, f)
		if err == nil || attempt == maxTxAttempts || !retryable(err) {
			return err
		}
		if !sleep(ctx, time.Duration(rand.Int64N(int64(attempt)*int64(5*time.Millisecond)))) {
			return fmt.Errorf("retry transaction: %w", context.Cause(ctx))
		}
	}
}

// sleep waits, and reports false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

func (s *Store) tryTx(ctx context.Context, limit time.Duration, f func(ctx context.Context, tx pgx.Tx) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error { return f(ctx, tx) })
}

func retryable(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "40P01" || pg.Code == "40001")
}
