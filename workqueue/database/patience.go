package database

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

const (
	// restartTimeout is how long lost connections are retried for a patient context; locks, as long as it says.
	restartTimeout = 5 * time.Second
	// againFirst and againMost are the first and longest pause between tries, doubled each time.
	againFirst = 50 * time.Millisecond
	againMost  = time.Second
	// holdersEvery is how often the holders of an awaited lock are queried.
	holdersEvery = 50 * time.Millisecond
)

type patienceKey struct{}

// Patiently returns a context whose transactions and statements are retried for that long after transient failures:
// lock_timeout, or a closed connection. If a lock is still held then, the error is a [HeldError].
func Patiently(ctx context.Context, patience time.Duration) context.Context {
	return context.WithValue(ctx, patienceKey{}, patience)
}

// patient reports whether a transaction begun at begun is retried. committing: it may have been committed.
func patient(ctx context.Context, begun time.Time, err error, committing bool) bool {
	patience, _ := ctx.Value(patienceKey{}).(time.Duration)
	if pg.IsLockTimeout(err) {
		return time.Since(begun) < patience
	}
	return Lost(err) && (!committing || pgconn.SafeToRetry(err)) && time.Since(begun) < min(patience, restartTimeout)
}

// again repeats an idempotent operation after transient failures, for as long as ctx is patient.
func again(ctx context.Context, f func() error) error {
	begun, pauses := time.Now(), backoff.Exponential{First: againFirst, Longest: againMost}
	for {
		err := f()
		if err == nil || ctx.Err() != nil || !patient(ctx, begun, err, false) || pauses.Wait(ctx) != nil {
			return err
		}
	}
}

// Lost reports whether an error means that a connection was closed, or currently cannot be made.
func Lost(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return false
	}
	_, coming := Coming(err)
	return coming || pgconn.SafeToRetry(err)
}

// Unavailable reports whether PostgreSQL cannot be reached, cut the connection, is shutting down (57), is out of
// resources (53), or takes too long.
func Unavailable(err error) bool {
	_, cannotConnect := errors.AsType[*pgconn.ConnectError](err) // with any cause
	if said, ok := errors.AsType[*pgconn.PgError](err); ok && !cannotConnect {
		return strings.HasPrefix(said.Code, "53") || strings.HasPrefix(said.Code, "57")
	}
	_, cut := errors.AsType[net.Error](err)      // includes timeouts of a context
	_, file := errors.AsType[*fs.PathError](err) // whose error number is a net.Error, too
	return cannotConnect || cut && !file || Lost(err) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) ||
		errors.Is(err, net.ErrClosed)
}

// Contended reports whether an error is due to other transactions.
func Contended(err error) bool { return pg.IsLockTimeout(err) || retryable(err) }

// HeldError means that others held a lock for too long.
type HeldError struct {
	Holders []string // human-readable; none: unknown
	err     error
}

func (e *HeldError) Error() string {
	if len(e.Holders) == 0 {
		return "another transaction in PostgreSQL holds what this needs; try again soon"
	}
	return fmt.Sprintf("%s in PostgreSQL holds what this needs; try again when it ends, or end it with "+
		"pg_terminate_backend(its number)", strings.Join(e.Holders, ", "))
}

func (e *HeldError) Unwrap() error { return e.err }

const holdersOf = `
SELECT format('process %s (%s, user %s%s)', a.pid, coalesce(nullif(a.application_name, ''), 'without a name'),
    a.usename,
    coalesce(', in a transaction for ' || round(extract(epoch FROM clock_timestamp() - a.xact_start)) || ' s', ''))
FROM unnest(pg_blocking_pids($1)) p JOIN pg_stat_activity a ON a.pid = p ORDER BY a.pid`

// watchHolders queries who holds what a transaction waits for, until it knows or is stopped.
func (s *DB) watchHolders(ctx context.Context, tx pgx.Tx, holders *[]string) (stop func(), err error) {
	var pid int32
	if err := tx.QueryRow(ctx, `SELECT pg_backend_pid()`).Scan(&pid); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for backoff.Sleep(ctx, holdersEvery) == nil {
			found, err := pg.Collect(ctx, s.Pool, pgx.RowTo[string], holdersOf, pid)
			if err == nil && len(found) > 0 {
				*holders = found
				return
			}
		}
	}()
	return func() { cancel(); <-ended }, nil
}

// SlowError means that PostgreSQL did not answer before the deadline.
type SlowError struct {
	For  string // what was requested
	Took time.Duration
	err  error
}

// Slow converts a deadline error to a [SlowError], and returns others unchanged.
func Slow(err error, what string, since time.Time) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return &SlowError{For: what, Took: time.Since(since), err: err}
	}
	return err
}

func (e *SlowError) Error() string {
	return fmt.Sprintf("PostgreSQL takes more than %.0f s for %s", e.Took.Seconds(), e.For)
}

func (e *SlowError) Unwrap() error { return e.err }
