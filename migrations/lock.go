package migrations

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/stdlib"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/backoff"
)

const applicationName = "tranche migrate"

const (
	backendPID = `SELECT pg_backend_pid()`
	// beginLock needs no snapshot longer than a statement: CREATE INDEX CONCURRENTLY waits for all older snapshots.
	beginLock = `BEGIN ISOLATION LEVEL READ COMMITTED`
	endLock   = `ROLLBACK`
	// keepLock stops PostgreSQL from ending a session, or in a transaction ($1) that, which only holds the lock.
	keepLock = `SELECT set_config(name, '0', $1) FROM pg_settings
WHERE name IN ('idle_in_transaction_session_timeout', 'idle_session_timeout', 'transaction_timeout')`
	// tryLock does not wait: CREATE INDEX CONCURRENTLY would wait for the waiting statement.
	tryLock = `SELECT CASE WHEN $2 THEN pg_try_advisory_xact_lock($1) ELSE pg_try_advisory_lock($1) END`

	person = `format('process %s (%s, user %s)%s', a.pid, coalesce(nullif(a.application_name, ''), 'without a name'),
    a.usename,
    coalesce(', whose transaction began ' || round(extract(epoch FROM clock_timestamp() - a.xact_start)) || ' s ago',
        ''))`
	lockHolders = `SELECT ` + person + ` FROM pg_locks l JOIN pg_stat_activity a USING (pid)
WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 1 AND (l.classid::bigint << 32 | l.objid::bigint) = $1
    AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`
	// blockers lists who blocks a statement of a migration.
	blockers = `SELECT DISTINCT ` + person + `
FROM pg_stat_activity w, unnest(pg_blocking_pids(w.pid)) p JOIN pg_stat_activity a ON a.pid = p
WHERE w.datname = current_database() AND w.application_name = $1 ORDER BY 1`
)

// alone runs f while it holds the advisory lock, on a dedicated connection: a pooler may hand f's own connection to
// other clients between statements. The session holds the lock, or behind such a pooler a transaction.
func alone(ctx context.Context, db *sql.DB, log *zap.Logger, f func() error) (err error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }() // the session ends with db
	pooled, err := behindPooler(ctx, conn)
	if err != nil {
		return err
	}
	if pooled {
		if _, err := conn.ExecContext(ctx, beginLock); err != nil {
			return err
		}
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lookTimeout)
			defer cancel()
			_, _ = conn.ExecContext(ctx, endLock) // otherwise it ends with its connection
		}()
	}
	if _, err := conn.ExecContext(ctx, keepLock, pooled); err != nil {
		return err
	}
	if err := lock(ctx, conn, pooled, log); err != nil {
		return err
	}
	said := sayBlockers(ctx, db, log)
	defer said()
	return f()
}

// behindPooler reports whether another process serves the connection than the one reported to the client.
func behindPooler(ctx context.Context, conn *sql.Conn) (pooled bool, err error) {
	err = conn.Raw(func(driver any) error {
		c := driver.(*stdlib.Conn).Conn() //nolint:forcetypeassert // [open] makes no other
		var pid uint32
		err := c.QueryRow(ctx, backendPID).Scan(&pid)
		pooled = pid != c.PgConn().PID()
		return err
	})
	return pooled, err
}

func lock(ctx context.Context, conn *sql.Conn, inTransaction bool, log *zap.Logger) error {
	waiting, cancel := context.WithTimeoutCause(ctx, lockTimeout,
		fmt.Errorf("another process has been migrating this database for %s", lockTimeout))
	defer cancel()
	pauses := backoff.Exponential{First: saidFirst, Longest: saidLongest}
	say := time.After(pauses.Next())
	for {
		var locked bool
		if err := conn.QueryRowContext(waiting, tryLock, int64(lockID), inTransaction).Scan(&locked); err != nil || locked {
			return err
		}
		select {
		case <-waiting.Done():
			return context.Cause(waiting)
		case <-say:
			holders, _ := texts(waiting, conn, lockHolders, int64(lockID)) // without them, it is still logged
			log.Warn("the start waits for another process that migrates this database: " + strings.Join(holders, "; "))
			say = time.After(pauses.Next())
		case <-time.After(lockPause):
		}
	}
}

// sayBlockers logs who blocks a statement, until stopped.
func sayBlockers(ctx context.Context, db *sql.DB, log *zap.Logger) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		pauses := backoff.Exponential{First: saidFirst, Longest: saidLongest}
		for backoff.Sleep(ctx, pauses.Next()) == nil {
			found, err := texts(ctx, db, blockers, applicationName)
			if err == nil && len(found) > 0 {
				log.Warn("the migrations wait for a lock, or the end of a transaction, of " + strings.Join(found, "; ") +
					"; they continue when it ends, or is ended with pg_terminate_backend(its number)")
			}
		}
	}()
	return func() { cancel(); <-ended }
}

// itemView is a view of the items of runs. Since the files have their current numbers, the second migration has
// always created it: a database at that version without the view was migrated by other files.
const (
	itemView       = "run_item"
	itemViewSource = 2
)

// FormerSchemaError is returned for a database of an unreleased version of Tranche. It cannot be migrated.
type FormerSchemaError struct {
	Newest int64 // number of its last migration
}

func (e *FormerSchemaError) Error() string {
	return fmt.Sprintf("its schema (migration %d, without the view %s) was made by a version of Tranche before its first "+
		"release, and cannot be brought up to date; make the database again: drop it, create it, and run "+
		"tranche migrate --database URL; or, for the private one of tranche serve, choose another --data-dir", e.Newest,
		itemView)
}

// checkLineage refuses a database that other files migrated to the given versions.
func checkLineage(ctx context.Context, db *sql.DB, versions []int64) error {
	if !slices.Contains(versions, itemViewSource) {
		return nil
	}
	var is bool
	if err := db.QueryRowContext(ctx, `SELECT to_regclass($1) IS NOT NULL`, itemView).Scan(&is); err != nil {
		return fmt.Errorf("check the schema: %w", err)
	}
	if !is {
		return &FormerSchemaError{Newest: slices.Max(versions)}
	}
	return nil
}
