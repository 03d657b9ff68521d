package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// HeldError means that another session leads, with the time left of its lease, or has precedence.
type HeldError struct {
	Left      time.Duration
	Outranked bool
}

func (e *HeldError) Error() string { return workqueue.ErrNotLeader.Error() }

// Is makes it a [workqueue.ErrNotLeader].
func (e *HeldError) Is(target error) bool { return target == workqueue.ErrNotLeader }

const (

	// outranked holds while a node with precedence over $2 can lead.
	outranked = `EXISTS (SELECT FROM node_session n
    WHERE n.ended_at IS NULL AND n.expires_at > tranche_now()
        AND n.precedence > (SELECT precedence FROM node_session WHERE id = $2))`

	// prolongLease never waits: leader transactions lock the row FOR KEY SHARE, which an UPDATE of other columns
	// does not conflict with. So a slow or hung one does not cost its node the lease.
	prolongLease = `
UPDATE leader SET expires_at = tranche_now() + $3
WHERE name = $1 AND session_id = $2 AND NOT ` + outranked + ` RETURNING epoch`

	// takeLease locks the row FOR UPDATE: it waits for a leader transaction that has checked the lease and is about to
	// commit, so nothing of the old epoch is committed in the new one. The UPDATE repeats the condition.
	takeLease = `
WITH free AS MATERIALIZED (
    SELECT name FROM leader WHERE name = $1 AND expires_at <= tranche_now() AND NOT ` + outranked + ` FOR UPDATE),
taken AS (
    UPDATE leader l SET epoch = l.epoch + 1, session_id = $2, expires_at = tranche_now() + $3,
        since = tranche_now()
    FROM free WHERE l.name = free.name AND l.expires_at <= tranche_now() RETURNING l.epoch),
made AS (
    INSERT INTO leader (name, epoch, session_id, expires_at)
    SELECT $1, 1, $2, tranche_now() + $3 WHERE NOT EXISTS (SELECT FROM leader WHERE name = $1)
        AND NOT ` + outranked + `
    ON CONFLICT (name) DO NOTHING RETURNING epoch)
SELECT epoch FROM taken UNION ALL SELECT epoch FROM made`

	leaseLeft = `
SELECT greatest(max(expires_at) - tranche_now(), interval '0'), ` + outranked + ` FROM leader WHERE name = $1`
)

// Lead takes or prolongs the lease for ttl. If another session has it or should have it, it returns a [HeldError],
// which is a [workqueue.ErrNotLeader]. A leader that is outranked resigns.
func (s Store) Lead(ctx context.Context, session workqueue.SessionID, ttl time.Duration) (workqueue.Lease, error) {
	lease := workqueue.Lease{Session: session}
	var err error
	for _, statement := range []string{prolongLease, takeLease} {
		err = s.db.Sessions.QueryRow(ctx, statement, ledger.LeaseName, session, ttl).Scan(&lease.Epoch)
		if !errors.Is(err, pgx.ErrNoRows) {
			break
		}
	}
	switch {
	case err == nil:
		return lease, nil
	case !errors.Is(err, pgx.ErrNoRows):
		return workqueue.Lease{}, fmt.Errorf("take the leader's lease: %w", err)
	}
	held := &HeldError{}
	if err := s.db.Sessions.QueryRow(ctx, leaseLeft, ledger.LeaseName, session).Scan(&held.Left,
		&held.Outranked); err != nil {
		return workqueue.Lease{}, fmt.Errorf("take the leader's lease: %w", err)
	}
	return workqueue.Lease{}, held
}

const setPrecedence = `UPDATE node_session SET precedence = $2 WHERE id = $1`

// SetPrecedence sets a session's precedence over other leaders, initially 0. A node unable to lead must reset it.
func (s Store) SetPrecedence(ctx context.Context, session workqueue.SessionID, precedence int) error {
	_, err := s.db.Sessions.Exec(ctx, setPrecedence, session, precedence)
	return pg.Wrap(err, "set the precedence of session %s", session)
}

const dropLease = `
UPDATE leader SET expires_at = tranche_now() WHERE name = $1 AND session_id = $2 AND epoch = $3`

// Resign releases the lease, so that another node need not wait for its end.
func (s Store) Resign(ctx context.Context, lease workqueue.Lease) error {
	_, err := s.db.Sessions.Exec(ctx, dropLease, ledger.LeaseName, lease.Session, lease.Epoch)
	return pg.Wrap(err, "resign the leader's lease")
}

// AsLeader runs f in a transaction that commits only if the lease still holds; otherwise it returns
// [workqueue.ErrNotLeader] and has no effect. It checks the lease before f, to avoid useless work. After f it checks
// and locks it, so that no takeover happens before the commit. So all that a leader commits is committed before the
// next epoch begins, however long it was stopped; and while f runs, another node can take over. f must keep its
// effects in the transaction, which is retried after a deadlock.
func (s Store) AsLeader(
	ctx context.Context, lease workqueue.Lease, f func(ctx context.Context, tx pgx.Tx) error,
) error {
	return s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		if err := ledger.CheckLease(ctx, tx, ledger.LeaseHolds, lease); err != nil {
			return err
		}
		if err := f(ctx, tx); err != nil {
			return err
		}
		return ledger.HoldLeaseIn(ctx, tx, lease)
	})
}

// ExecAsLeader runs one statement as [Store.AsLeader] does, and returns how many rows it touched.
func (s Store) ExecAsLeader(ctx context.Context, lease workqueue.Lease, sql string, args ...any) (n int64, err error) {
	err = s.AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, sql, args...)
		n = tag.RowsAffected()
		return err
	})
	return n, err
}

// Audit writes an audit entry in the transaction of an action, for packages outside the store.
func Audit(ctx context.Context, tx pgx.Tx, actor, action, subject string, after map[string]any) error {
	return ledger.AuditChange(ctx, tx, ledger.Action{Actor: actor, Name: action, Subject: subject, After: after})
}

// stalledTimeout is how long a client may keep PostgreSQL waiting in the middle of a statement that holds locks.
const stalledTimeout = 10 * time.Second

// A process stopped or cut off in the middle of a COPY keeps its locks: PostgreSQL waits for the rest. During a
// statement idle_in_transaction_session_timeout does not apply, and statement_timeout is only checked when the
// client sends something. So such a transaction is ended from outside.

// stalledClients lists the transactions that wait for their client in the middle of a statement and have locked rows
// that others wait for, with their progress. Only the nodes' database user may end them. It does not use the
// connection's name: a URL may give each node its own.
const stalledClients = `
SELECT a.pid, a.query_start, coalesce(p.bytes_processed, 0)
FROM pg_stat_activity a LEFT JOIN pg_stat_progress_copy p USING (pid)
WHERE a.datname = current_database() AND a.usename = current_user AND a.pid <> pg_backend_pid()
    AND a.state = 'active' AND a.wait_event_type = 'Client' AND a.backend_xid IS NOT NULL
    AND EXISTS (SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.locktype = 'relation'
        AND l.database = a.datid AND l.mode <> 'AccessShareLock' AND l.relation IN ('batchrun'::regclass,
            'run_step'::regclass, 'work_block'::regclass, 'work_slice'::regclass, 'work_lane'::regclass,
            'collector'::regclass, 'collector_key'::regclass, 'endpoint_pace'::regclass, 'stream_epoch'::regclass,
            'tracker_batch'::regclass, 'tracker_group'::regclass, 'tracker_service'::regclass))`

// endStalled ends one, unless it has started another statement meanwhile or the lease has passed on.
const endStalled = `
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE pid = $1 AND query_start = $2 AND state = 'active'
    AND EXISTS (SELECT FROM leader WHERE name = $3 AND session_id = $4 AND epoch = $5
        AND expires_at > tranche_now())`

type stalledClient struct {
	pid   int32
	since time.Time // start of the statement
	bytes int64     // received so far
}

type stalledWatch struct {
	mu   sync.Mutex
	seen map[stalledClient]time.Time
}

// overdue updates what is seen, and returns connections without progress for stalledTimeout.
func (w *stalledWatch) overdue(clients []stalledClient, now time.Time) (stuck []stalledClient) {
	w.mu.Lock()
	defer w.mu.Unlock()
	seen := make(map[stalledClient]time.Time, len(clients))
	for _, c := range clients {
		first, known := w.seen[c]
		if !known {
			first = now
		}
		seen[c] = first
		if now.Sub(first) >= stalledTimeout {
			stuck = append(stuck, c)
		}
	}
	w.seen = seen
	return stuck
}

// EndStalledClients ends the transactions of processes that stopped in the middle of a statement and hold locks;
// their work can then be swept. It compares successive calls, so it must be called repeatedly. It returns how many
// it ended. Leader work: the statement that ends one checks the lease, since it cannot be rolled back.
func (s Store) EndStalledClients(ctx context.Context, lease workqueue.Lease) (int, error) {
	rows := pg.Rows(ctx, s.db.Sessions, stalledClients)
	clients, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c stalledClient, err error) {
		err = row.Scan(&c.pid, &c.since, &c.bytes)
		return c, err
	})
	if err != nil {
		return 0, fmt.Errorf("find stalled clients: %w", err)
	}
	ended := 0
	for _, c := range database.Kept[stalledWatch](s.db).overdue(clients, time.Now()) {
		tag, err := s.db.Sessions.Exec(ctx, endStalled, c.pid, c.since, ledger.LeaseName, lease.Session, lease.Epoch)
		if err != nil {
			return ended, fmt.Errorf("end the connection %d of a stalled client: %w", c.pid, err)
		}
		ended += int(tag.RowsAffected())
	}
	return ended, nil
}
