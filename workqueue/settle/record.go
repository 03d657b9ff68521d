package settle

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// Slot is one item's place in a reply: a result or an error.
type Slot struct {
	Ordinal     workqueue.Ordinal
	Result      []byte
	ContentType string               // empty: JSON
	Large       *Large               // set if the result is stored separately and Result refers to it
	Err         *workqueue.SlotError // nil: success
}

// Large is a result that is stored separately: see package export.
type Large struct {
	ID    uuid.UUID
	Bytes int64
}

func (s *Slot) bytes() int64 {
	if s.Large != nil {
		return s.Large.Bytes
	}
	return int64(len(s.Result))
}

// Answer is one message of a reply.
type Answer struct {
	Slice    workqueue.SliceID
	Endpoint string
	Service  string
	Answered int // on the last message, the number of slots in the reply; else -1
	Slots    []Slot
	Failure  *workqueue.SlotError // the chunk failed entirely; applies to the items without a slot
	Took     float64              // seconds that the service worked on the chunk; 0: unknown
	Worked   float64              // seconds that a host or source took for all its requests; 0: neither
	// Unreadable: a message could not be read; Failure says why. The slice ends, since that message's items are unknown.
	Unreadable bool
}

// Verdict is the outcome of an answer.
type Verdict struct {
	Taken      int                 // slots accepted
	Duplicates int                 // slots for items that already had one
	Foreign    []workqueue.Ordinal // slots for items that were not requested: ignored
	Stale      bool                // the slice is superseded, ended or unknown: nothing was accepted
	// the slice's endpoint, if the answer came from another: nothing was accepted
	Endpoint string
}

// Recorded is the outcome of a recording transaction.
type Recorded struct {
	Verdicts  []Verdict // one for each answer
	Completed []Completion
	Look      FollowUp
	Due       []time.Duration // delays until slices that it made for retries are due
}

// partRow is what a row of parts takes besides the result, without content type.
const partRow = 80

// maxKeptBuffer bounds the buffer that a recording keeps for the next one.
const maxKeptBuffer = 8 << 20

// Record records answers in one transaction: it fences their slices, checks the slots against the requests, writes
// parts, moves bits, makes slices for retries, acknowledges final items and completes runs. All of it is committed
// or none; the caller acknowledges the messages after a nil error.
//
// Answers may come in any order and repeatedly. One that does not fit is reported in its verdict and changes
// nothing.
func (s Store) Record(ctx context.Context, answers []Answer) (Recorded, error) {
	var out Recorded
	ids := make([]workqueue.SliceID, 0, len(answers))
	for i := range answers {
		ids = append(ids, answers[i].Slice)
	}
	parts, reused := database.Kept[partBuffers](s.db).Get().(*pg.CopyRows)
	if !reused {
		parts = &pg.CopyRows{}
	}
	defer func() {
		if cap(parts.Buf) <= maxKeptBuffer {
			database.Kept[partBuffers](s.db).Put(parts)
		}
	}()
	var set *settlement
	err := s.db.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		out = Recorded{Verdicts: make([]Verdict, len(answers))}
		held, err := LockSlices(ctx, tx, slicesByID, ids)
		if err != nil {
			return err
		}
		set = newSettlement(parts, database.Kept[plane.GraphCache](s.db))
		if set.seals, err = s.sealsOf(ctx, tx, held); err != nil {
			return err
		}
		tallies := make(map[workqueue.SliceID]*tally, len(held))
		for _, h := range held {
			tallies[h.ID] = &tally{HeldSlice: h}
		}
		parts.Buf = slices.Grow(parts.Buf, sizeOf(answers, tallies)) // growing bit by bit allocates several times as much
		for _, i := range inOrder(answers) {
			out.Verdicts[i] = tallies[answers[i].Slice].take(set, &answers[i])
		}
		if err := closeAll(ctx, tx, set, held, tallies); err != nil {
			return err
		}
		err = set.apply(ctx, tx)
		out.Completed, out.Look, out.Due = set.finished, set.followUp(), set.due()
		return err
	})
	if err != nil {
		return Recorded{}, fmt.Errorf("record %d answers: %w", len(answers), err)
	}
	s.tell(set)
	return out, nil
}

func (s Store) sealsOf(ctx context.Context, tx pgx.Tx, held []*plane.HeldSlice,
) (seals map[workqueue.RunID]*database.Seal, err error) {
	seals = map[workqueue.RunID]*database.Seal{}
	for _, h := range held {
		if _, known := seals[h.Run]; !known && h.Live() { // that of another may be gone with its run
			if seals[h.Run], err = s.db.Seal(ctx, tx, h.Run); err != nil {
				return nil, err
			}
		}
	}
	return seals, nil
}

// sizeOf is what the results of live slices take as rows, if none is encrypted or refused.
func sizeOf(answers []Answer, tallies map[workqueue.SliceID]*tally) (size int) {
	for i := range answers {
		if of := tallies[answers[i].Slice]; of == nil || !of.Live() {
			continue
		}
		for j := range answers[i].Slots {
			size += partRow + len(answers[i].Slots[j].Result)
		}
	}
	return size
}

// inOrder returns the answers' indices by first ordinal: writing parts in key order costs PostgreSQL a third less.
func inOrder(answers []Answer) []int {
	order := make([]int, len(answers))
	for i := range order {
		order[i] = i
	}
	first := func(i int) workqueue.Ordinal {
		if len(answers[i].Slots) == 0 {
			return -1
		}
		return answers[i].Slots[0].Ordinal
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(first(a)) - int(first(b)) })
	return order
}

type partBuffers struct{ sync.Pool }
