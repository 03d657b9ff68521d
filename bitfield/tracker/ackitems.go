package tracker

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
)

// ItemsAck names items of one tracker and their outcome.
type ItemsAck struct {
	Batch uuid.UUID
	Items []Ack  // by masks
	Whole []Span // whole groups
	All   bool   // all existing groups
	Code  string // of the failure; empty: done
}

// AckItems acknowledges items of any number of trackers: all, or with an error none. Several ItemsAcks may name the
// same tracker and items; the first one counts. Results are in the order of acks. The ack of the last item has
// Completed set, and only its caller is notified.
//
// Items already acknowledged keep their outcome. An unknown group or index is a *GroupError. An expired tracker
// accepts acks but never completes.
func AckItems(ctx context.Context, tx pgx.Tx, acks []ItemsAck) ([]Acked, error) {
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
	// After all rows of tracker_failed, and by ascending ID: rows of tracker_service are locked last.
	for _, w := range work {
		switch {
		case w.completed:
			queueEnd(after, w.batch, EventCompleted)
		case w.stale && w.last >= 0:
			after.Queue(touchSQL, w.batch)
		}
	}
	if after.Len() > 0 {
		err = tx.SendBatch(ctx, after).Close()
	}
	return out, err
}

func checkAcks(acks []ItemsAck) error {
	masks := 0
	for i := range acks {
		masks += len(acks[i].Items)
		if err := CheckText("code", acks[i].Code, MaxCode); err != nil {
			return err
		}
	}
	if masks > MaxAckGroups {
		return &RequestError{Field: "ids", Problem: fmt.Sprintf(
			"name items of %d groups; at most %d can be named at a time: send fewer, or ids of neighbors together",
			masks, MaxAckGroups)}
	}
	return nil
}

// work is a call's work in one batch.
type work struct {
	batch     uuid.UUID
	acks      []ItemsAck // of the call
	steps     []*step
	stale     bool // its recorded activity is old
	failed    map[failedGroup]bitfield.Set
	last      int // index of the last ack with an effect; -1: none
	completed bool
}

// step is one statement: masks of any number of acks, or whole groups of one.
type step struct {
	of    []int // indexes of the acks in the call
	whole []Span
	acked Acked
	fresh []Ack // newly acknowledged items, if needed
}

type failedGroup struct {
	group int
	code  string
}

// planAcks groups the acks by batch, ascending.
func planAcks(ctx context.Context, tx pgx.Tx, acks []ItemsAck) ([]*work, error) {
	byBatch := map[uuid.UUID]*work{}
	var list []*work
	for i := range acks {
		w := byBatch[acks[i].Batch]
		if w == nil {
			w = &work{batch: acks[i].Batch, acks: acks, failed: map[failedGroup]bitfield.Set{}, last: -1}
			byBatch[w.batch] = w
			list = append(list, w)
		}
		if err := w.add(ctx, tx, i); err != nil {
			return nil, err
		}
	}
	slices.SortFunc(list, func(a, b *work) int { return slices.Compare(a.batch[:], b.batch[:]) })
	return list, nil
}

// groupsOfSQL takes no lock: groups added concurrently are not included.
const groupsOfSQL = `
SELECT b.groups FROM tracker_batch b
WHERE b.id = $1 AND EXISTS (SELECT FROM tracker_service s WHERE s.batch_id = $1 AND s.deleted_at IS NULL)`

func (w *work) add(ctx context.Context, tx pgx.Tx, i int) error {
	a := &w.acks[i]
	if len(a.Items) > 0 {
		n := len(w.steps)
		if n == 0 || w.steps[n-1].whole != nil {
			w.steps = append(w.steps, &step{})
			n++
		}
		w.steps[n-1].of = append(w.steps[n-1].of, i)
	}
	whole := a.Whole
	if a.All {
		var groups int
		if err := tx.QueryRow(ctx, groupsOfSQL, a.Batch).Scan(&groups); err != nil {
			return notFound("acknowledge items of", a.Batch, err)
		}
		if groups > 0 {
			whole = append(slices.Clip(whole), Span{First: 0, Last: groups - 1})
		}
	}
	if len(whole) > 0 {
		w.steps = append(w.steps, &step{whole: whole, of: []int{i}})
	}
	return nil
}

func (w *work) code(s *step) string { return w.acks[s.of[0]].Code }

// bits reports whether the new items must be known: several acks share the statement, or items failed.
func (w *work) bits(s *step) bool { return s.whole == nil && (len(s.of) > 1 || w.code(s) != "") }

func (w *work) items(s *step) (all []Ack) {
	if s.whole != nil {
		return nil
	}
	for _, i := range s.of {
		all = append(all, w.acks[i].Items...)
	}
	return all
}

func (w *work) attribute(out []Acked) {
	for _, s := range w.steps {
		if w.bits(s) {
			w.split(s, out)
		} else if s.acked.Newly > 0 {
			out[s.of[0]].Newly += s.acked.Newly
			w.last = s.of[0]
		}
		if s.acked.Completed {
			w.completed, out[w.last].Completed = true, true
			return
		}
	}
}

// split assigns each new item to the first ack that names it. The last ack that got any acknowledged the last item.
func (w *work) split(s *step, out []Acked) {
	fresh := make(map[int]*bitfield.Set, len(s.fresh))
	for i := range s.fresh {
		fresh[s.fresh[i].Group] = &s.fresh[i].Mask
	}
	for _, i := range s.of {
		for _, a := range w.acks[i].Items {
			left := fresh[a.Group]
			if left == nil {
				continue
			}
			mine := left.And(a.Mask)
			if mine.Empty() {
				continue
			}
			*left = left.AndNot(mine)
			out[i].Newly += mine.Count()
			w.last = i
			if code := w.acks[i].Code; code != "" {
				at := failedGroup{a.Group, code}
				w.failed[at] = w.failed[at].Or(mine)
			}
		}
	}
}

// checkSQL takes no lock. stale means that the recorded activity is older than a second and than a twentieth of the
// shorter age, so that a busy batch rarely writes its row.
const checkSQL = `
SELECT active_at < tranche_now() - greatest(interval '1 second', least(open_idle, sealed_idle) / 20)
FROM tracker_service WHERE batch_id = $1 AND deleted_at IS NULL`

// lockAllSQL locks the groups of a call with several statements, in ascending order, before the first statement locks
// the batch row. The spans $2 to $3 are disjoint and ascending.
const lockAllSQL = `
SELECT count(*) FROM (
    SELECT FROM unnest($2::integer[], $3::integer[]) AS s(first, last)
    JOIN tracker_group g ON g.batch_id = $1 AND g.grp BETWEEN s.first AND s.last
    WHERE g.grp BETWEEN $4 AND $5
    ORDER BY g.grp
    FOR NO KEY UPDATE OF g
) AS locked`

// failSQL records failed items. The transaction holds their groups, so there are no concurrent writers.
const failSQL = `
INSERT INTO tracker_failed AS f (batch_id, grp, code, mask)
SELECT $1, w.grp, w.code, w.mask
FROM unnest($2::integer[], $3::text[], $4::bit(8192)[]) AS w(grp, code, mask)
ON CONFLICT (batch_id, grp, code) DO UPDATE SET mask = f.mask | excluded.mask`

// touchSQL records activity. It skips a locked row, whose holder records activity too.
const touchSQL = `
UPDATE tracker_service s
SET active_at = tranche_now(), reap_at = tranche_now() + least(s.open_idle, s.sealed_idle)
FROM (SELECT batch_id FROM tracker_service WHERE batch_id = $1 FOR NO KEY UPDATE SKIP LOCKED) free
WHERE s.batch_id = free.batch_id`

// queue adds a batch's statements: the check, then its steps.
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
		return queueAckWhole(b, w.batch, s.whole, w.code(s), &s.acked)
	case w.bits(s):
		return queueAckNew(b, w.batch, w.items(s), &s.acked, &s.fresh)
	}
	return QueueAck(b, w.batch, w.items(s), &s.acked)
}

func (w *work) queueLocks(b *pgx.Batch) error {
	var list []Span
	for _, s := range w.steps {
		list = append(list, s.whole...)
		for _, a := range w.items(s) {
			list = append(list, Span{First: a.Group, Last: a.Group})
		}
	}
	m, err := mergeSpans(w.batch, list)
	if err != nil {
		return err
	}
	b.Queue(lockAllSQL, w.batch, m.first, m.last, m.lo(), m.hi())
	return nil
}

func (w *work) queueFailed(b *pgx.Batch) {
	var (
		groups []int32
		codes  []string
		masks  []bitfield.Set
	)
	for at, mask := range w.failed {
		groups, codes, masks = append(groups, int32(at.group)), append(codes, at.code), append(masks, mask) // in range
	}
	if len(groups) > 0 {
		b.Queue(failSQL, w.batch, groups, codes, pgbits.Slice(masks))
	}
}
