package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
	"github.com/tranchehq/tranche/bitfield/tracker"
)

// BatchAck names items of one batch, and how they ended.
type BatchAck struct {
	Batch uuid.UUID
	Items []tracker.Ack  // by masks
	Whole []tracker.Span // whole groups
	All   bool           // all groups that there are
	Code  string         // why they failed; empty: they are done
}

// Acked is what a BatchAck did.
type Acked struct {
	Newly     int64 // how many of its items were pending until then
	Completed bool  // it acknowledged the last of them: no one else is told
}

// Ack acknowledges items of any number of batches, all of them or, with an error, none. Several BatchAcks may name the
// same batch, and the same items: the earlier one has them. The results stand in the same order.
//
// An item that was acknowledged before is left as it was, done or failed. An unknown batch is a *NotFoundError, a group
// or an index that it does not have a *tracker.GroupError. Items of an expired batch are acknowledged like others, but
// it will never complete.
func Ack(ctx context.Context, tx pgx.Tx, acks []BatchAck) ([]Acked, error) {
	if err := checkAcks(acks); err != nil {
		return nil, err
	}
	work, err := planAcks(ctx, tx, acks)
	if err != nil {
		return nil, err
	}
	batch := &pgx.Batch{}
	for _, w := range work {
		if err := w.queue(batch); err != nil {
			return nil, err
		}
	}
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return nil, err
	}
	out := make([]Acked, len(acks))
	after := &pgx.Batch{}
	for _, w := range work {
		w.attribute(out)
		w.queueFailed(after)
	}
	// After all rows of tracker_failed, and by ascending id: the rows of tracker_service are locked last.
	for _, w := range work {
		w.queueService(after)
	}
	if after.Len() > 0 {
		err = tx.SendBatch(ctx, after).Close()
	}
	return out, err
}

func checkAcks(acks []BatchAck) error {
	masks := 0
	for i := range acks {
		masks += len(acks[i].Items)
		if err := text("code", acks[i].Code, MaxCode, false); err != nil {
			return err
		}
	}
	if masks > MaxAckGroups {
		return &RequestError{Field: "ids", Problem: fmt.Sprintf(
			"name items of %d groups; at most %d can be named at a time: send fewer, or ids of neighbours together",
			masks, MaxAckGroups)}
	}
	return nil
}

// planAcks puts the acks of each batch together, by ascending batch.
func planAcks(ctx context.Context, tx pgx.Tx, acks []BatchAck) ([]*work, error) {
	byBatch := map[uuid.UUID]*work{}
	var list []*work
	for i := range acks {
		a := &acks[i]
		w := byBatch[a.Batch]
		if w == nil {
			w = &work{batch: a.Batch, last: -1}
			byBatch[a.Batch] = w
			list = append(list, w)
		}
		if err := w.add(ctx, tx, i, a); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(list, func(a, b *work) int { return slices.Compare(a.batch[:], b.batch[:]) })
	return list, nil
}

// part is what one BatchAck has for a step.
type part struct {
	ack   int // its place in the call
	code  string
	items []tracker.Ack
}

// step is one statement: masks, of any number of parts, or whole groups, of one.
type step struct {
	parts []part
	whole []tracker.Span
	acked tracker.Acked
	fresh tracker.AckedNew
}

// work is what a call has to do in one batch.
type work struct {
	batch  uuid.UUID
	steps  []*step
	stale  bool // its last activity was noted long ago
	newly  int64
	failed []failedMask
	last   int // the ack that completed it; -1: none
}

type failedMask struct {
	code string
	ack  tracker.Ack
}

// groupsOfSQL takes no lock: groups that are added meanwhile are not meant.
const groupsOfSQL = `
SELECT b.groups FROM tracker_batch b
WHERE b.id = $1 AND EXISTS (SELECT FROM tracker_service s WHERE s.batch_id = $1 AND s.deleted_at IS NULL)`

func (w *work) add(ctx context.Context, tx pgx.Tx, i int, a *BatchAck) error {
	if len(a.Items) > 0 {
		n := len(w.steps)
		if n == 0 || w.steps[n-1].whole != nil {
			w.steps = append(w.steps, &step{})
			n++
		}
		w.steps[n-1].parts = append(w.steps[n-1].parts, part{ack: i, code: a.Code, items: a.Items})
	}
	whole := a.Whole
	if a.All {
		var groups int
		if err := tx.QueryRow(ctx, groupsOfSQL, a.Batch).Scan(&groups); err != nil {
			return notFound("acknowledge items of", a.Batch, err)
		}
		if groups > 0 {
			whole = append(slices.Clip(whole), tracker.Span{First: 0, Last: groups - 1})
		}
	}
	if len(whole) > 0 {
		w.steps = append(w.steps, &step{whole: whole, parts: []part{{ack: i, code: a.Code}}})
	}
	return nil
}

// bits says whether it must be known which items were pending: when several share a statement, or some failed.
func (s *step) bits() bool { return len(s.parts) > 1 || s.parts[0].code != "" }

func (s *step) all() []tracker.Ack {
	if len(s.parts) == 1 {
		return s.parts[0].items
	}
	var all []tracker.Ack
	for _, p := range s.parts {
		all = append(all, p.items...)
	}
	return all
}

// attribute tells each part of the call what it did.
func (w *work) attribute(out []Acked) {
	for _, s := range w.steps {
		acked := s.acked
		if s.whole == nil && s.bits() {
			acked = s.fresh.Acked
			w.split(s, out)
		} else {
			out[s.parts[0].ack].Newly += int64(acked.Newly)
			w.newly += int64(acked.Newly)
			if acked.Newly > 0 {
				w.last = s.parts[0].ack
			}
		}
		if acked.Completed {
			out[w.last].Completed = true
			return
		}
	}
	w.last = -1
}

// split gives each new item to the first part that names it. The ack of the last item is that of the last part which
// got any.
func (w *work) split(s *step, out []Acked) {
	fresh := make(map[int]*tracker.Ack, len(s.fresh.New))
	for i := range s.fresh.New {
		fresh[s.fresh.New[i].Group] = &s.fresh.New[i]
	}
	for _, p := range s.parts {
		for _, a := range p.items {
			left := fresh[a.Group]
			if left == nil {
				continue
			}
			mine := left.Mask.And(a.Mask)
			n := mine.Count()
			if n == 0 {
				continue
			}
			left.Mask = left.Mask.AndNot(mine)
			out[p.ack].Newly += int64(n)
			w.newly += int64(n)
			w.last = p.ack
			if p.code != "" {
				w.failed = append(w.failed, failedMask{p.code, tracker.Ack{Group: a.Group, Mask: mine}})
			}
		}
	}
	slices.SortStableFunc(w.failed, func(a, b failedMask) int {
		return cmp.Or(cmp.Compare(a.ack.Group, b.ack.Group), cmp.Compare(a.code, b.code))
	})
}

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

// failSQL notes items as failed whose groups the transaction holds: no one else writes these rows.
const failSQL = `
INSERT INTO tracker_failed AS f (batch_id, grp, code, mask)
SELECT $1, w.grp, w.code, w.mask
FROM unnest($2::integer[], $3::text[], $4::bit(8192)[]) AS w(grp, code, mask)
ON CONFLICT (batch_id, grp, code) DO UPDATE SET mask = f.mask | excluded.mask`

// touchSQL notes activity. It skips a row that someone holds: they note it as well.
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
