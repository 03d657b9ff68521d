package service

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield/tracker"
)

// reapGroups bounds the groups, of a kilobyte, in which one Reap counts what is pending of the batches that expire; one
// batch may have more. So it comes to its end in time, from a cold disk too.
const reapGroups = 20_000

// Reaped says what a Reap did.
type Reaped struct {
	Looked  int         // batches that were looked at
	More    bool        // there may be others
	Expired []uuid.UUID // they were idle for too long
	Deleted []uuid.UUID // they ended long ago
}

// reapCandidatesSQL locks the batch rows of those whose time may have come. It leaves out what somebody is completing
// or sealing, and so waits for nobody. Of those it locked it returns the first, and those behind it as long as all of
// them together have no more groups to count than $2.
const reapCandidatesSQL = `
SELECT batch_id, locked
FROM (
    SELECT batch_id, reap_at, sum(groups) OVER (ORDER BY reap_at, batch_id) AS total,
        row_number() OVER (ORDER BY reap_at, batch_id) AS place, count(*) OVER () AS locked
    FROM (
        SELECT s.batch_id, s.reap_at, CASE WHEN b.state IN ('open', 'sealed') THEN b.groups ELSE 0 END AS groups
        FROM tracker_service s JOIN tracker_batch b ON b.id = s.batch_id
        WHERE s.reap_at <= tranche_now() AND s.deleted_at IS NULL
        ORDER BY s.reap_at LIMIT $1
        FOR NO KEY UPDATE OF b SKIP LOCKED
    ) due
) ordered
WHERE place = 1 OR total <= $2`

type candidate struct {
	Batch  uuid.UUID
	Locked int // with all others
}

// reapVerdictSQL runs after the lock, and so sees the batches as they will stay. An ack notes activity up to a
// twentieth of the ages late, which is added here: a batch may live a little too long, and never ends too early. A
// batch that ended is kept while its webhook is owed, and looked at again an hour later.
const reapVerdictSQL = `
SELECT v.batch_id, v.live, v.due_at <= tranche_now() AND (v.live OR NOT v.owed),
    CASE WHEN v.live OR NOT v.owed THEN v.due_at ELSE greatest(v.due_at, tranche_now() + interval '1 hour') END
FROM (
    SELECT s.batch_id, b.state IN ('open', 'sealed') AS live, s.webhook_state = 'due' AS owed,
        CASE b.state
            WHEN 'open' THEN greatest(s.active_at, b.active_at) + s.open_idle
            WHEN 'sealed' THEN greatest(s.active_at, b.active_at) + s.sealed_idle
            ELSE coalesce(b.completed_at, s.expired_at, s.active_at) + s.keep
        END + CASE WHEN b.state IN ('open', 'sealed')
            THEN greatest(interval '1 second', least(s.open_idle, s.sealed_idle) / 20)
            ELSE interval '0' END AS due_at
    FROM tracker_service s JOIN tracker_batch b ON b.id = s.batch_id
    WHERE s.batch_id = ANY ($1)
) v
ORDER BY v.batch_id`

// deferReapSQL is for those whose time has not come. An ack that notes activity meanwhile comes later and writes a
// later moment.
const deferReapSQL = `
UPDATE tracker_service s
SET reap_at = greatest(d.look_at, tranche_now() + interval '1 second')
FROM unnest($1::uuid[], $2::timestamptz[]) AS d(batch_id, look_at)
WHERE s.batch_id = d.batch_id`

type verdict struct {
	Batch     uuid.UUID
	Live, Due bool
	LookAt    time.Time // when it is not due
}

// Reap ends at most limit batches whose time has come: open and sealed ones expire when nobody touched them for their
// age, with an event; what ended is deleted after Keep. Of large batches it ends fewer. It is the leader's, in a
// transaction that holds the lease.
func Reap(ctx context.Context, tx pgx.Tx, limit int) (Reaped, error) {
	return reapBy(ctx, tx, reapVerdictSQL, limit, reapGroups)
}

func reapBy(ctx context.Context, tx pgx.Tx, judge string, limit, groups int) (Reaped, error) {
	rows, err := tx.Query(ctx, reapCandidatesSQL, limit, groups)
	if err != nil {
		return Reaped{}, wrap("reap", uuid.UUID{}, err)
	}
	due, err := pgx.CollectRows(rows, pgx.RowToStructByPos[candidate])
	if err != nil || len(due) == 0 {
		return Reaped{}, wrap("reap", uuid.UUID{}, err)
	}
	ids := make([]uuid.UUID, len(due))
	for i := range due {
		ids[i] = due[i].Batch
	}
	if rows, err = tx.Query(ctx, judge, ids); err != nil {
		return Reaped{}, wrap("reap", uuid.UUID{}, err)
	}
	verdicts, err := pgx.CollectRows(rows, pgx.RowToStructByPos[verdict])
	if err != nil {
		return Reaped{}, wrap("reap", uuid.UUID{}, err)
	}
	done, err := carryOut(ctx, tx, verdicts)
	done.More = due[0].Locked == limit || due[0].Locked > len(due)
	return done, err
}

func carryOut(ctx context.Context, tx pgx.Tx, verdicts []verdict) (Reaped, error) {
	done := Reaped{Looked: len(verdicts)}
	var (
		later []uuid.UUID
		when  []time.Time
		after = &pgx.Batch{}
	)
	for _, v := range verdicts {
		switch {
		case !v.Due:
			later, when = append(later, v.Batch), append(when, v.LookAt)
		case v.Live:
			if err := tracker.Cancel(ctx, tx, v.Batch); err != nil {
				return Reaped{}, err
			}
			queueEnd(after, v.Batch, EventExpired)
			done.Expired = append(done.Expired, v.Batch)
		default:
			done.Deleted = append(done.Deleted, v.Batch)
		}
	}
	after.Queue(deferReapSQL, later, when)
	after.Queue(markDeletedSQL, done.Deleted)
	if err := tx.SendBatch(ctx, after).Close(); err != nil {
		return Reaped{}, wrap("reap", uuid.UUID{}, err)
	}
	return done, nil
}
