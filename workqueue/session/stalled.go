package session

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/ledger"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
)

// stalledPatience is how long a client may keep PostgreSQL waiting in the middle of a statement that holds locks.
const stalledPatience = 10 * time.Second

// A process that was stopped, or cut off, in the middle of a COPY keeps its locks: PostgreSQL waits for the rest, and
// idle_in_transaction_session_timeout does not count while a statement is under way, nor is statement_timeout looked at
// before the client says something. Such a transaction is ended from outside.

// stalledClients lists the transactions that wait for their client in the middle of a statement and have locked rows
// that others wait for, with how far they have come. Only the user that nodes connect as may end them. It does not go
// by the name of the connection: a URL may give each node its own.
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

// endStalled ends one, unless it has gone on to another statement meanwhile, or the lease has passed on.
const endStalled = `
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE pid = $1 AND query_start = $2 AND state = 'active'
    AND EXISTS (SELECT FROM leader WHERE name = $3 AND session_id = $4 AND epoch = $5
        AND expires_at > tranche_now())`

// stalledClient is a connection in one place of one statement.
type stalledClient struct {
	pid   int32
	since time.Time // when the statement began
	bytes int64     // that it has got of it
}

// stalledWatch remembers when connections were first seen where they are.
type stalledWatch struct {
	mu   sync.Mutex
	seen map[stalledClient]time.Time
}

// overdue takes what is seen now, and returns those that have not moved for stalledPatience.
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
		if now.Sub(first) >= stalledPatience {
			stuck = append(stuck, c)
		}
	}
	w.seen = seen
	return stuck
}

// EndStalledClients ends the transactions of processes that have stopped in the middle of a statement and hold locks:
// what they had locked can be swept then. It tells them by looking again, so it is to be called repeatedly. It returns
// how many it ended. Leader work: it looks at the lease in the statement that ends one, since an end cannot be rolled
// back.
func (s Store) EndStalledClients(ctx context.Context, lease workqueue.Lease) (int, error) {
	rows := pg.Rows(ctx, s.db.Sessions, stalledClients)
	clients, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (c stalledClient, err error) {
		err = row.Scan(&c.pid, &c.since, &c.bytes)
		return c, err
	})
	if err != nil {
		return 0, fmt.Errorf("look for stalled clients: %w", err)
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
