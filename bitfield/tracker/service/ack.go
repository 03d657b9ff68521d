package service

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

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
	Completed bool  // it acknowledged the last of them: nobody else is told
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
