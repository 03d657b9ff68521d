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

// Slot is one item's place in a reply: a result, or an error.
type Slot struct {
	Ordinal     workqueue.Ordinal
	Result      []byte
	ContentType string               // empty: JSON
	Large       *Large               // the result is kept apart, and Result refers to it; nil: Result is all of it
	Err         *workqueue.SlotError // nil: Result counts
}

// Large is a result that is kept apart: see package results.
type Large struct {
	ID    uuid.UUID
	Bytes int64
}

// bytes is the size of the result.
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
	Answered int // on the last message, the number of slots in all messages of the reply; -1 on the others
	Slots    []Slot
	Failure  *workqueue.SlotError // the chunk failed as a whole; speaks for the items without a slot
	Took     float64              // seconds that the service worked on the chunk; 0: it does not say
	Worked   float64              // seconds that a host or source took for all requests of it; 0: it is neither
	// Unreadable is set when a message of the reply could not be read; Failure says why. The slice ends at once, for
	// no one knows which of its items the message was about.
	Unreadable bool
}

// Verdict says what became of an answer.
type Verdict struct {
	Taken      int                 // slots accepted
	Duplicates int                 // slots for items that were answered before
	Foreign    []workqueue.Ordinal // slots for items that were not asked for: not taken
	Stale      bool                // the slice is superseded, closed or unknown: nothing was taken
	// where the slice was sent, when that is not where the answer came from: nothing was taken
	Endpoint string
}

// Recorded is the outcome of a recording transaction.
type Recorded struct {
	Verdicts  []Verdict // one for each answer
	Completed []Completion
	Look      FollowUp
	Due       []time.Duration // in how long slices come due that it made to be retried after a pause
}

// maxKeptBuffer bounds the memory of a recording that the next one finds again.
const maxKeptBuffer = 16 << 20

// Record takes answers in one transaction: it fences their slices, holds the slots against what was asked, writes the
// parts, moves the bits, makes slices of what is to be retried, acknowledges final items and completes runs. All of
// it happens or none; the caller acknowledges the messages after it returned nil.
//
// Answers may come in any order and more than once. An answer that does not fit is reported in its verdict and changes
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
		tallies := make(map[workqueue.SliceID]*tally, len(held))
		for _, h := range held {
			tallies[h.ID] = &tally{HeldSlice: h}
		}
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

// inOrder returns the answers' indices by the ordinals they start with: parts that are written in the order of their
// key cost PostgreSQL a third less than shuffled ones.
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

// partBuffers are those of past recordings, some megabytes each.
type partBuffers struct{ sync.Pool }
