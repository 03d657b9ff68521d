// Package database is PostgreSQL as Tranche sees it: connections, and transactions that are run again when it breaks
// them off.
package database

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// DB is PostgreSQL as Tranche sees it. It is safe for concurrent use.
type DB struct {
	Pool     *connections
	Sessions *pgxpool.Pool // for heartbeats and leases, so that they need not queue for a connection
	settings string        // a statement that follows each BEGIN, empty: none; see transactionSettings
	kept     sync.Map      // by their types, what the rooms keep for it
}

// New returns a database on a pool that has been migrated. It does not close the pool. See also [Open].
func New(pool *pgxpool.Pool) *DB {
	return &DB{Pool: &connections{ordinary: pool, credentials: pool, tasks: pool}, Sessions: pool}
}

// Kept returns the T that is kept for a database, such as a cache: a zero one at first. It must be safe for concurrent
// use.
func Kept[T any](db *DB) *T {
	key := reflect.TypeFor[T]()
	kept, ok := db.kept.Load(key)
	if !ok {
		kept, _ = db.kept.LoadOrStore(key, new(T))
	}
	return kept.(*T) //nolint:forcetypeassert // by its type
}

// errDryRun takes back what a dry run has done.
var errDryRun = errors.New("this was a dry run")

// RedoOrTry runs an operator's transaction; a dry run does all of it and takes it back.
func (s *DB) RedoOrTry(ctx context.Context, dryRun bool, f func(context.Context, pgx.Tx) error) error {
	err := s.InTxWithin(ctx, OperatorTimeout, func(ctx context.Context, tx pgx.Tx) error {
		err := f(ctx, tx)
		if err == nil && dryRun {
			err = errDryRun
		}
		return err
	})
	if errors.Is(err, errDryRun) {
		return nil
	}
	return err
}

// Snapshot runs f in a read-only transaction that sees the database as it stood at one moment: what f reads with
// several statements adds up. Keep f short; while it runs, PostgreSQL cannot clean up behind anybody.
func (s *DB) Snapshot(ctx context.Context, f func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, s.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, f)
}

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
	begun, conflicts := time.Now(), 0
	pauses := backoff.Exponential{First: againFirst, Longest: againMost}
	var holders *[]string // nil: no one is known to hold anything
	for {
		committing, err := s.tryTx(ctx, limit, holders, f)
		var pause time.Duration
		switch {
		case err == nil:
			return nil
		case retryable(err) && conflicts < maxTxAttempts-1:
			conflicts++
			pause = rand.N(time.Duration(conflicts) * 5 * time.Millisecond)
		case ctx.Err() == nil && patient(ctx, begun, err, committing):
			pause = pauses.Next()
			if holders == nil {
				holders = &[]string{}
			}
		case holders != nil && pg.IsLockTimeout(err):
			return &HeldError{*holders, err}
		default:
			return err
		}
		if backoff.Sleep(ctx, pause) != nil {
			return fmt.Errorf("retry transaction: %w", context.Cause(ctx))
		}
	}
}

// tryTx is one attempt. With holders, it notes there who holds what it waits for. committing says that it is not known
// whether what failed was committed.
func (s *DB) tryTx(ctx context.Context, limit time.Duration, holders *[]string,
	f func(ctx context.Context, tx pgx.Tx) error,
) (committing bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, err := s.Pool.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Release() // one that is not at rest, after a panic or in trouble, is closed
	tx := pg.NewPipelined(ctx, conn.Conn(), s.settings)
	if holders != nil {
		stop, err := s.watchHolders(ctx, tx, holders)
		if err != nil {
			return false, err
		}
		defer stop()
	}
	if err := f(ctx, tx); err != nil {
		_ = tx.Rollback(ctx) // when it fails the connection is gone, and the transaction with it
		return false, err
	}
	return true, tx.Commit(ctx)
}

func retryable(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "40P01" || pg.Code == "40001")
}
