// Package database gives access to PostgreSQL: connections, and transactions that are retried after deadlocks,
// serialization failures and, if asked, lost connections.
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

// DB is a PostgreSQL database of Tranche. It is safe for concurrent use.
type DB struct {
	Pool     *connections
	Sessions *pgxpool.Pool // for heartbeats and leases, which must not queue for a connection
	settings string        // a statement sent after each BEGIN, empty: none; see transactionSettings
	kept     sync.Map      // by type, what packages keep for it
	seals    sealing
}

// New returns a database on a migrated pool, which it does not close. See also [Open].
func New(pool *pgxpool.Pool) *DB {
	return &DB{Pool: &connections{ordinary: pool, credentials: pool, tasks: pool}, Sessions: pool}
}

// Kept returns the T kept for a database, such as a cache, initially zero. It must be safe for concurrent use.
func Kept[T any](db *DB) *T {
	key := reflect.TypeFor[T]()
	kept, ok := db.kept.Load(key)
	if !ok {
		kept, _ = db.kept.LoadOrStore(key, new(T))
	}
	return kept.(*T) //nolint:forcetypeassert // by its type
}

var errDryRun = errors.New("this was a dry run")

// RedoOrTry runs an operator's transaction; a dry run does everything and rolls back.
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

// Snapshot runs f in a read-only transaction that sees the database as of one moment, so several statements are
// consistent. Keep f short: while it runs, PostgreSQL cannot vacuum.
func (s *DB) Snapshot(ctx context.Context, f func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, s.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, f)
}

const (
	// maxTxAttempts bounds the attempts of a transaction after deadlocks and serialization failures.
	maxTxAttempts = 8
	// TxTimeout bounds one attempt. A dead connection is dropped after it.
	TxTimeout = 15 * time.Second
	// OperatorTimeout bounds a rerun or cancel, which may change every block of a large run.
	OperatorTimeout = 2 * time.Minute
	// LoadTimeout bounds a transaction that writes megabytes of items.
	LoadTimeout = time.Minute
)

// InTx runs f in a transaction, and retries it entirely after a deadlock (40P01) or serialization failure (40001). So
// f must keep its effects in the transaction, and use the context passed to it. The transaction begins in the round
// trip of f's first statement; [pg.Later]'s are committed in the round trip that sends them.
func (s *DB) InTx(ctx context.Context, f func(ctx context.Context, tx pgx.Tx) error) error {
	return s.InTxWithin(ctx, TxTimeout, f)
}

// InTxWithin is [DB.InTx] with another time limit for each attempt.
func (s *DB) InTxWithin(ctx context.Context, limit time.Duration,
	f func(ctx context.Context, tx pgx.Tx) error,
) error {
	begun, conflicts := time.Now(), 0
	pauses := backoff.Exponential{First: againFirst, Longest: againMost}
	var holders *[]string // nil: no holder is known
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

// tryTx is one attempt. It collects lock holders unless holders is nil. committing: a failure may have committed.
func (s *DB) tryTx(ctx context.Context, limit time.Duration, holders *[]string,
	f func(ctx context.Context, tx pgx.Tx) error,
) (committing bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, err := s.Pool.Acquire(ctx)
	if err != nil {
		return false, err
	}
	defer conn.Release() // closes it if it is not idle, after a panic or an error
	tx := pg.NewPipelined(ctx, conn.Conn(), s.settings)
	if holders != nil {
		stop, err := s.watchHolders(ctx, tx, holders)
		if err != nil {
			return false, err
		}
		defer stop()
	}
	if err := f(ctx, tx); err != nil {
		_ = tx.Rollback(ctx) // if it fails, the connection is gone, and the transaction with it
		return false, err
	}
	return true, tx.Commit(ctx)
}

func retryable(err error) bool {
	var pg *pgconn.PgError
	return errors.As(err, &pg) && (pg.Code == "40P01" || pg.Code == "40001")
}
