package database

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

const (
	// restartTimeout is how long a connection that was closed, as a restart does, is made again for who is patient; what
	// someone holds is waited for as long as he says.
	restartTimeout = 5 * time.Second
	// againFirst and againMost are the pauses between two tries, doubled.
	againFirst = 50 * time.Millisecond
	againMost  = time.Second
	// holdersEvery is how often it is looked who holds what a transaction waits for.
	holdersEvery = 50 * time.Millisecond
)

type patienceKey struct{}

// Patiently returns a context whose transactions, and statements outside of one, are begun again for so long when what
// broke them off passes: someone held for longer than lock_timeout what they need, or the connection was closed. What
// keeps a transaction even then is a [HeldError].
func Patiently(ctx context.Context, patience time.Duration) context.Context {
	return context.WithValue(ctx, patienceKey{}, patience)
}

// patient reports whether a transaction that began at begun is to be retried after an error. committing says that
// no one knows whether it was committed, unless PostgreSQL says so.
func patient(ctx context.Context, begun time.Time, err error, committing bool) bool {
	patience, _ := ctx.Value(patienceKey{}).(time.Duration)
	if pg.IsLockTimeout(err) {
		return time.Since(begun) < patience
	}
	return Lost(err) && (!committing || pgconn.SafeToRetry(err)) && time.Since(begun) < min(patience, restartTimeout)
}

// again does what may be done twice until nothing breaks it off, for as long as ctx is patient.
func again(ctx context.Context, f func() error) error {
	begun, pauses := time.Now(), backoff.Exponential{First: againFirst, Longest: againMost}
	for {
		err := f()
		if err == nil || ctx.Err() != nil || !patient(ctx, begun, err, false) || pauses.Wait(ctx) != nil {
			return err
		}
	}
}

// Lost reports whether an error says that a connection was closed, or that none can be made at the moment.
func Lost(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return false
	}
	_, coming := Coming(err)
	return coming || pgconn.SafeToRetry(err)
}

// Contended reports whether an error says that other transactions kept one from being done.
func Contended(err error) bool { return pg.IsLockTimeout(err) || retryable(err) }

// HeldError says that what a transaction needs was held by others for too long.
type HeldError struct {
	Holders []string // in words; none: it is not known who
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

// watchHolders looks who holds what a transaction waits for, until it knows or is stopped.
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

// SlowError says that PostgreSQL had not answered when its time was up.
type SlowError struct {
	For  string // what it was asked
	Took time.Duration
	err  error
}

// Slow makes an error of a time that was up a [SlowError], and returns any other as it is.
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
