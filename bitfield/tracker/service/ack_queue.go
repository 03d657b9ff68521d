package service

import (
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/bitfield/tracker"
)

// checkSQL takes no lock. stale: the activity that is noted is older than a second and than a twentieth of the shorter
// age, so that a batch that is at work writes its row seldom.
const checkSQL = `
SELECT active_at < tranche_now() - greatest(interval '1 second', least(open_idle, sealed_idle) / 20)
FROM tracker_service WHERE batch_id = $1 AND deleted_at IS NULL`

// lockAllSQL locks the groups of a call that needs several statements, in ascending order, before the first of these
// locks the batch row. The spans $2 to $3 lie apart and ascend.
const lockAllSQL = `
SELECT count(*) FROM (
    SELECT FROM unnest($2::integer[], $3::integer[]) AS s(first, last)
    JOIN tracker_group g ON g.batch_id = $1 AND g.grp BETWEEN s.first AND s.last
    WHERE g.grp BETWEEN $4 AND $5
    ORDER BY g.grp
    FOR NO KEY UPDATE OF g
) AS locked`

// failWholeSQL notes as failed what is pending in whole groups. It locks these groups, in ascending order, so that the
// ack which follows in the same transaction clears the same bits.
const failWholeSQL = `
WITH locked AS MATERIALIZED (
    SELECT g.grp, g.pending
    FROM unnest($2::integer[], $3::integer[]) AS s(first, last)
    JOIN tracker_group g ON g.batch_id = $1 AND g.grp BETWEEN s.first AND s.last
    WHERE g.grp BETWEEN $4 AND $5 AND g.pending <> B'0'::bit(8192)
    ORDER BY g.grp
    FOR NO KEY UPDATE OF g
)
INSERT INTO tracker_failed AS f (batch_id, grp, code, mask)
SELECT $1, grp, $6, pending FROM locked
ON CONFLICT (batch_id, grp, code) DO UPDATE SET mask = f.mask | excluded.mask`

// failSQL notes items as failed whose groups the transaction holds: nobody else writes these rows.
const failSQL = `
INSERT INTO tracker_failed AS f (batch_id, grp, code, mask)
SELECT $1, w.grp, w.code, w.mask
FROM unnest($2::integer[], $3::text[], $4::bit(8192)[]) AS w(grp, code, mask)
ON CONFLICT (batch_id, grp, code) DO UPDATE SET mask = f.mask | excluded.mask`

// touchSQL notes activity. It skips a row that somebody holds: they note it as well.
const touchSQL = `
UPDATE tracker_service s
SET active_at = tranche_now(), reap_at = tranche_now() + least(s.open_idle, s.sealed_idle)
FROM (SELECT batch_id FROM tracker_service WHERE batch_id = $1 FOR NO KEY UPDATE SKIP LOCKED) free
WHERE s.batch_id = free.batch_id`

// queue adds the statements of a batch: the check, and its steps.
func (w *work) queue(b *pgx.Batch) error {
	b.Queue(checkSQL, w.batch).QueryRow(func(row pgx.Row) error {
		return notFound("acknowledge items of", w.batch, row.Scan(&w.stale))
	})
	if len(w.steps) > 1 {
		if err := w.queueLocks(b); err != nil {
			return err
		}
	}
	for _, s := range w.steps {
		if err := w.queueStep(b, s); err != nil {
			return err
		}
	}
	return nil
}

func (w *work) queueStep(b *pgx.Batch, s *step) error {
	switch {
	case s.whole != nil:
		if code := s.parts[0].code; code != "" {
			first, last, err := tracker.MergeSpans(w.batch, s.whole)
			if err != nil {
				return err
			}
			b.Queue(failWholeSQL, w.batch, first, last, first[0], last[len(last)-1], code)
		}
		return tracker.QueueAckWhole(b, w.batch, s.whole, &s.acked)
	case s.bits():
		return tracker.QueueAckNew(b, w.batch, s.all(), &s.fresh)
	}
	return tracker.QueueAck(b, w.batch, s.parts[0].items, &s.acked)
}

func (w *work) queueLocks(b *pgx.Batch) error {
	var spans []tracker.Span
	for _, s := range w.steps {
		spans = append(spans, s.whole...)
		for _, a := range s.all() {
			spans = append(spans, tracker.Span{First: a.Group, Last: a.Group})
		}
	}
	first, last, err := tracker.MergeSpans(w.batch, spans)
	if err != nil {
		return err
	}
	b.Queue(lockAllSQL, w.batch, first, last, first[0], last[len(last)-1])
	return nil
}

func (w *work) queueFailed(b *pgx.Batch) {
	if len(w.failed) == 0 {
		return
	}
	var (
		groups = make([]int32, 0, len(w.failed))
		codes  = make([]string, 0, len(w.failed))
		masks  = make([]bitfield.Set, 0, len(w.failed))
	)
	for _, f := range w.failed {
		// A row can be written once in a statement; the list is sorted.
		if n := len(groups); n > 0 && groups[n-1] == int32(f.ack.Group) && codes[n-1] == f.code { // a group of the batch
			masks[n-1] = masks[n-1].Or(f.ack.Mask)
			continue
		}
		groups = append(groups, int32(f.ack.Group)) // a group of the batch
		codes = append(codes, f.code)
		masks = append(masks, f.ack.Mask)
	}
	b.Queue(failSQL, w.batch, groups, codes, pgbits.Slice(masks))
}

func (w *work) queueService(b *pgx.Batch) {
	switch {
	case w.last >= 0:
		queueEnd(b, w.batch, EventCompleted)
	case w.stale && w.newly > 0:
		b.Queue(touchSQL, w.batch)
	}
}

func notFound(op string, batch uuid.UUID, err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return &NotFoundError{Batch: batch}
	}
	return wrap(op, batch, err)
}
