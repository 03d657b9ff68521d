package retention

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/session"
)

// What may be deleted of each kind, with its end and approximate size, including row headers and index entries.
const (
	// Abandoned loads are cleared separately.
	finishedRuns = `
    SELECT r.ctid, r.id::text AS id, r.finished_at AS at, coalesce(z.bytes, 0) AS size
    FROM batchrun r LEFT JOIN retention_size z ON z.run_id = r.id
    WHERE r.state IN ('completed', 'cancelled') AND (r.sealed_at IS NOT NULL OR r.opened)`

	// Runs that continue it are deleted first.
	continuedByDue = ` AND NOT EXISTS (
        WITH RECURSIVE later (id) AS (
            SELECT o.id FROM batchrun o WHERE o.from_run = r.id
            UNION ALL
            SELECT o.id FROM later JOIN batchrun o ON o.from_run = later.id)
        SELECT FROM later JOIN batchrun o USING (id)
        WHERE o.state NOT IN ('completed', 'cancelled') OR o.finished_at >= $1)`

	// Reports and histories read the events of runs, except starts and seals, and doctor counts completions.
	oldEvents = `
    SELECT e.ctid, e.id::text AS id, e.at, pg_column_size(e.payload) + 200 AS size FROM run_event e
    WHERE e.published_at IS NOT NULL AND NOT EXISTS (SELECT FROM batchrun r
        WHERE r.id = e.run_id AND (r.state IN ('loading', 'running') OR e.kind NOT IN ('started', 'sealed')))`

	// The schema has the rules, for audit_expire, which alone may delete.
	oldAudit = `
    SELECT id::text AS id, at, size FROM audit_deletable`

	oldQuarantine = `
    SELECT q.ctid, q.id::text AS id, q.at, pg_column_size(q.body) + pg_column_size(q.detail) + 250 AS size
    FROM quarantine q`

	// Waiting letters stay, and requeued ones not in the stream so far.
	oldLetters = `
    SELECT d.ctid, d.id::text AS id, d.changed_at AS at, coalesce(pg_column_size(d.body), 0) + 400 AS size
    FROM dead_letter d WHERE d.state <> 'waiting' AND (d.state <> 'requeued' OR d.sent_at IS NOT NULL)`

	// What a dead node holds is swept first, which needs the session's row.
	oldSessions = `
    SELECT n.ctid, n.id::text AS id, least(n.ended_at, n.expires_at) AS at, pg_column_size(n.stats) + 200 AS size
    FROM node_session n
    WHERE (n.ended_at IS NOT NULL OR n.expires_at < tranche_now())
        AND NOT EXISTS (SELECT FROM work_slice w WHERE w.state = 'claimed' AND w.session_id = n.id)
        AND NOT EXISTS (SELECT FROM batchrun r WHERE r.state = 'loading' AND r.loader_session = n.id)
        AND NOT EXISTS (SELECT FROM leader l WHERE l.session_id = n.id)`

	// A due time whose run is in progress, or that was not checked for lateness, is not finished.
	oldOccurrences = `
    SELECT f.ctid, f.schedule || ' ' || f.due_at || f.kind AS id, f.ended_at AS at, 250 AS size
    FROM schedule_occurrence f
    WHERE f.ended_at IS NOT NULL AND (f.done_by IS NULL OR f.late_at IS NOT NULL OR f.state <> 'started')
        AND NOT EXISTS (SELECT FROM batchrun r WHERE r.id = f.run_id AND r.state IN ('loading', 'running'))`
)

// The time before which things are deleted: the latest given by the limits. $1 is the age, $2 the count, $3 the
// bytes; null is no limit. If a single thing exceeds the bytes, the newest one stays.
const (
	cutoffHead = `WITH old AS (`
	cutoffTail = `),
ranked AS (
    SELECT at, row_number() OVER newest AS n, sum(size) OVER newest AS bytes FROM old
    WHERE $2::bigint IS NOT NULL OR $3::bigint IS NOT NULL
    WINDOW newest AS (ORDER BY at DESC, id DESC))
SELECT greatest(tranche_now() - $1::interval, (SELECT at FROM ranked WHERE n = $2),
    CASE WHEN $3 IS NOT NULL THEN (SELECT coalesce(min(at) FILTER (WHERE bytes <= $3), max(at)) FROM ranked) END)`

	dueHead = `SELECT count(*), coalesce(sum(size), 0)::bigint, min(at), max(at) FROM (`
	dueTail = `) old WHERE at < $1`

	// By ctid: a concurrently changed row has another one, and stays.
	deleteMiddle = ` WHERE ctid = ANY (ARRAY(SELECT ctid FROM (`
	deleteTail   = `) old WHERE at < $1 LIMIT $2))`
)

const (
	cutoffRuns   = cutoffHead + finishedRuns + cutoffTail
	cutoffEvents = cutoffHead + oldEvents + cutoffTail
	cutoffAudit  = `
SELECT CASE WHEN old.at IS NOT NULL
    THEN least(old.at, tranche_now() - greatest(interval '1 hour', (SELECT min_age FROM audit_expiry))) END
FROM (` + cutoffHead + oldAudit + cutoffTail + `) old (at)`
	cutoffQuarantine  = cutoffHead + oldQuarantine + cutoffTail
	cutoffLetters     = cutoffHead + oldLetters + cutoffTail
	cutoffSessions    = cutoffHead + oldSessions + cutoffTail
	cutoffOccurrences = cutoffHead + oldOccurrences + cutoffTail

	dueRuns        = dueHead + finishedRuns + continuedByDue + dueTail
	dueEvents      = dueHead + oldEvents + dueTail
	dueAudit       = dueHead + oldAudit + dueTail
	dueQuarantine  = dueHead + oldQuarantine + dueTail
	dueLetters     = dueHead + oldLetters + dueTail
	dueSessions    = dueHead + oldSessions + dueTail
	dueOccurrences = dueHead + oldOccurrences + dueTail

	deleteEvents      = `DELETE FROM run_event` + deleteMiddle + oldEvents + deleteTail
	deleteAudit       = `SELECT audit_expire($1, $2)` // returns the number; the log cannot be deleted from directly
	deleteQuarantine  = `DELETE FROM quarantine` + deleteMiddle + oldQuarantine + deleteTail
	deleteLetters     = `DELETE FROM dead_letter` + deleteMiddle + oldLetters + deleteTail
	deleteSessions    = `DELETE FROM node_session` + deleteMiddle + oldSessions + deleteTail
	deleteOccurrences = `DELETE FROM schedule_occurrence` + deleteMiddle + oldOccurrences + deleteTail
)

type retained struct {
	kind        RetentionKind
	cutoff, due string
	remove      string // deletes up to $2 rows before $1; empty: runs are deleted in stages
}

// rules are all kinds, in display order. To add one, add a row.
//
//nolint:gochecknoglobals // a table
var rules = []retained{
	{RetainRuns, cutoffRuns, dueRuns, ""},
	{RetainEvents, cutoffEvents, dueEvents, deleteEvents},
	{RetainAudit, cutoffAudit, dueAudit, deleteAudit},
	{RetainQuarantine, cutoffQuarantine, dueQuarantine, deleteQuarantine},
	{RetainDeadLetters, cutoffLetters, dueLetters, deleteLetters},
	{RetainSessions, cutoffSessions, dueSessions, deleteSessions},
	{RetainOccurrences, cutoffOccurrences, dueOccurrences, deleteOccurrences},
}

func (k RetentionKind) statements() (of retained) {
	for _, r := range rules {
		if r.kind == k {
			of = r
		}
	}
	return of
}

// retentionReadTimeout bounds a search for what is past the limits of a kind, which may read all of it.
const retentionReadTimeout = 5 * time.Minute

// KindDue is what is past the limits of a kind.
type KindDue struct {
	Kind   RetentionKind `json:"kind"`
	Count  int64         `json:"count"`
	Bytes  int64         `json:"bytes" doc:"roughly"`
	Before *time.Time    `json:"before,omitempty" doc:"what ended before it is; absent: nothing is"`
	Oldest *time.Time    `json:"oldest,omitempty" doc:"when the oldest of them ended"`
	Newest *time.Time    `json:"newest,omitempty" doc:"when the newest of them ended"`
}

// RetentionCutoff returns the time before which things of a kind are deleted; nil if none are.
func (s Store) RetentionCutoff(ctx context.Context, r *Retention) (*time.Time, error) {
	if r.None() {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, retentionReadTimeout)
	defer cancel()
	var before *time.Time
	err := s.db.Pool.QueryRow(ctx, r.Kind.statements().cutoff, r.Age, r.Count, r.Bytes).Scan(&before)
	return before, pg.Wrap(err, "find %s that are past their limits", r.Kind)
}

// RetentionDue returns, for every kind, what would be deleted now.
func (s Store) RetentionDue(ctx context.Context) ([]KindDue, error) {
	all, err := s.Retention(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]KindDue, len(all))
	for i := range all {
		if out[i], err = s.retentionDue(ctx, &all[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (s Store) retentionDue(ctx context.Context, r *Retention) (due KindDue, err error) {
	due.Kind = r.Kind
	if due.Before, err = s.RetentionCutoff(ctx, r); err != nil || due.Before == nil {
		return due, err
	}
	ctx, cancel := context.WithTimeout(ctx, retentionReadTimeout)
	defer cancel()
	err = s.db.Pool.QueryRow(ctx, r.Kind.statements().due, due.Before).
		Scan(&due.Count, &due.Bytes, &due.Oldest, &due.Newest)
	return due, pg.Wrap(err, "count %s that are past their limits", r.Kind)
}

const noteDeleted = `
UPDATE retention SET deleted = deleted + $2, last_deleted = $2, last_at = tranche_now() WHERE kind = $1`

// NoteDeleted records how many things of a kind a round has deleted. Leader work.
func (s Store) NoteDeleted(ctx context.Context, lease workqueue.Lease, kind RetentionKind, n int64) error {
	_, err := session.New(s.db).ExecAsLeader(ctx, lease, noteDeleted, kind, n)
	return err
}

// DeleteOld deletes up to limit things of a kind that ended before a time in one transaction. Leader work.
func (s Store) DeleteOld(ctx context.Context, lease workqueue.Lease, kind RetentionKind, before time.Time, limit int,
) (n int64, err error) {
	statement := kind.statements().remove
	if statement == "" {
		return 0, errors.New("runs are deleted by stages")
	}
	err = session.New(s.db).AsLeader(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
		if kind == RetainAudit {
			return tx.QueryRow(ctx, statement, before, limit).Scan(&n)
		}
		tag, err := tx.Exec(ctx, statement, before, limit)
		n = tag.RowsAffected()
		return err
	})
	if err != nil {
		return 0, pg.Wrap(err, "delete old %s", kind)
	}
	return n, nil
}
