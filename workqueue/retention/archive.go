package retention

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/session"
)

const (
	stateOfRun = `SELECT ` + runState + ` FROM batchrun r WHERE r.id = $1`

	installation = `SELECT lineage FROM database_mark WHERE name = 'mark'`

	// No row without a target unless there is one: a leader without an archive notes that it has none.
	noteArchive = `
INSERT INTO archive (target, error, since)
SELECT coalesce(nullif($1, ''), a.target), coalesce($2, ''), CASE WHEN $2 <> '' THEN tranche_now() END
FROM (SELECT) one LEFT JOIN archive a ON true WHERE $1 <> '' OR a.target IS NOT NULL
ON CONFLICT (id) DO UPDATE SET target = excluded.target, error = coalesce($2, archive.error),
    since = CASE WHEN coalesce($2, archive.error) <> '' THEN coalesce(archive.since, tranche_now()) END`

	// Rows of a day at a time: the oldest that is not archived says whether any is due. In the order of the chain rows
	// are almost in that of time; one that is not goes to the archive, and is deleted, later.
	auditToArchive = `
SELECT a.seal, coalesce((
    SELECT max(l.seal) FROM audit_log l WHERE l.seal > a.seal AND l.at < $1::timestamptz + interval '1 day'
    AND (SELECT o.at FROM audit_log o WHERE o.seal > a.seal ORDER BY o.seal LIMIT 1) < $1), 0)
FROM archive a`

	auditArchived = `UPDATE archive SET seal = $1`
)

// Installation returns the ID of the database.
func (s Store) Installation(ctx context.Context) (id uuid.UUID, err error) {
	err = s.db.Pool.QueryRow(ctx, installation).Scan(&id)
	return id, pg.Wrap(err, "read the ID of the database")
}

// RunState returns what changes with each operation on a run, for an archive. [Store.DeleteRun] compares it.
func (s Store) RunState(ctx context.Context, run workqueue.RunID) (state string, err error) {
	err = s.db.Pool.QueryRow(ctx, stateOfRun, run).Scan(&state)
	return state, pg.Wrap(pg.NoRow(err, workqueue.ErrNotFound), "read the state of run %s", run)
}

// NoteArchive saves which archive the leader has, "" for none, and why something is not in it: an empty reason clears
// the last one, nil leaves it. From the first archive on, [Store.DeleteRun] and [Store.DeleteOld] leave what is not
// archived. It reports whether there has been one. Leader work.
func (s Store) NoteArchive(ctx context.Context, lease workqueue.Lease, target string, reason *string,
) (used bool, err error) {
	if reason != nil {
		reason = new(pg.Plain(*reason))
	}
	rows, err := session.New(s.db).ExecAsLeader(ctx, lease, noteArchive, target, reason)
	return rows > 0, pg.Wrap(err, "save the state of the archive")
}

// AuditToArchive returns the rows of the audit log that the archive needs before those older than a time are deleted:
// after one seal, up to another one; 0: none.
func (s Store) AuditToArchive(ctx context.Context, before time.Time) (after, last int64, err error) {
	err = s.db.Pool.QueryRow(ctx, auditToArchive, before).Scan(&after, &last)
	return after, last, pg.Wrap(err, "find audit rows to archive")
}

// AuditArchived saves up to which seal the audit log is archived. Leader work.
func (s Store) AuditArchived(ctx context.Context, lease workqueue.Lease, seal int64) error {
	_, err := session.New(s.db).ExecAsLeader(ctx, lease, auditArchived, seal)
	return pg.Wrap(err, "save up to where the audit log is archived")
}

const (
	sealAudit = `SELECT audit_seal($1)`
	sealPiece = 1000
)

// SealAudit chains the committed rows of the audit log that are not in its chain yet. Concurrent
// calls take turns.
func (s Store) SealAudit(ctx context.Context) error {
	for n := sealPiece; n == sealPiece; {
		err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
			return tx.QueryRow(ctx, sealAudit, sealPiece).Scan(&n)
		})
		if err != nil {
			return fmt.Errorf("seal the audit log: %w", err)
		}
	}
	return nil
}

const (
	auditSent     = `SELECT seal FROM audit_sink`
	noteAuditSent = `
INSERT INTO audit_sink (target, seal, error) VALUES ($1, $2, $3)
ON CONFLICT (id) DO UPDATE SET target = excluded.target, seal = excluded.seal, error = excluded.error`
)

// maxCarried limits the bytes of documents that are sent together, unless one entry has more.
const maxCarried = 512 << 10

// CarryAudit sends entries of the audit log that were not sent so far, in the order of the chain, and returns how many.
// If saving the position fails, they are sent again. Leader work.
func (s Store) CarryAudit(ctx context.Context, lease workqueue.Lease, target string,
	send func(context.Context, []inspect.AuditEntry) error) (n int, err error) {
	var sent int64
	err = s.db.Pool.QueryRow(ctx, auditSent).Scan(&sent)
	first := errors.Is(err, pgx.ErrNoRows)
	if err != nil && !first {
		return 0, fmt.Errorf("carry the audit log: %w", err)
	}
	page, err := inspect.New(s.db).ChainedAudit(ctx, sent, inspect.MaxAudit)
	if err != nil || len(page.Entries) == 0 && !first {
		return 0, err
	}
	size := 0
	for i := range page.Entries {
		e := &page.Entries[i]
		if size += len(e.Detail) + len(e.Before) + len(e.After); size > maxCarried && i > 0 {
			page.Entries, page.Next = page.Entries[:i], page.Entries[i-1].Seal
			break
		}
	}
	why := ""
	failed := send(ctx, page.Entries)
	if failed == nil {
		sent = max(sent, page.Next)
	} else {
		why = failed.Error()
	}
	_, err = session.New(s.db).ExecAsLeader(ctx, lease, noteAuditSent, target, sent, why)
	if err = errors.Join(failed, err); err != nil {
		return 0, fmt.Errorf("carry the audit log to %s: %w", target, err)
	}
	return len(page.Entries), nil
}
