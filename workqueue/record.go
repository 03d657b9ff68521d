package workqueue

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
)

// SlotError is an error in the place of a result.
type SlotError struct {
	Code    string // a short token, for grouping
	Message string
	Retry   bool // the same request may succeed later
}

// Slot is one item's place in a reply: a result, or an error.
type Slot struct {
	Ordinal     Ordinal
	Result      []byte
	ContentType string     // empty: JSON
	Err         *SlotError // nil: Result counts
}

// Answer is one message of a reply.
type Answer struct {
	Slice    SliceID
	Endpoint string
	Service  string
	Answered int // on the last message, the number of slots in all messages of the reply; -1 on the others
	Slots    []Slot
	Failure  *SlotError // the chunk failed as a whole; speaks for the items without a slot
	Took     float64    // seconds that the service worked on the chunk; 0: it does not say
}

// Verdict says what became of an answer.
type Verdict struct {
	Taken      int       // slots accepted
	Duplicates int       // slots for items that were answered before
	Foreign    []Ordinal // slots for items that were not asked for: not taken
	Stale      bool      // the slice is superseded, closed or unknown: nothing was taken
	Endpoint   string    // where the slice was sent, when that is not where the answer came from: nothing was taken
}

// Recorded is the outcome of a recording transaction.
type Recorded struct {
	Verdicts  []Verdict // one for each answer
	Completed []Completion
}

// maxKeptBuffer bounds the memory of a recording that the next one finds again.
const maxKeptBuffer = 16 << 20

// Record takes answers in one transaction: it fences their slices, holds the slots against what was asked, writes the
// parts, moves the bits, makes slices of what is to be tried again, acknowledges final items and completes runs. All of
// it happens or none; the caller acknowledges the messages after it returned nil.
//
// Answers may come in any order and more than once. An answer that does not fit is reported in its verdict and changes
// nothing.
func (s *Store) Record(ctx context.Context, answers []Answer) (Recorded, error) {
	var out Recorded
	ids := make([]SliceID, 0, len(answers))
	for i := range answers {
		ids = append(ids, answers[i].Slice)
	}
	parts, reused := s.parts.Get().(*copyRows)
	if !reused {
		parts = &copyRows{}
	}
	defer func() {
		if cap(parts.buf) <= maxKeptBuffer {
			s.parts.Put(parts)
		}
	}()
	err := s.inTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
		out = Recorded{Verdicts: make([]Verdict, len(answers))}
		held, err := lockSlices(ctx, tx, slicesByID, ids)
		if err != nil {
			return err
		}
		set := newSettlement(parts)
		tallies := make(map[SliceID]*tally, len(held))
		for _, h := range held {
			tallies[h.ID] = &tally{heldSlice: h}
		}
		for _, i := range inOrder(answers) {
			out.Verdicts[i] = tallies[answers[i].Slice].take(set, &answers[i])
		}
		for _, h := range held {
			tallies[h.ID].close(set)
		}
		err = set.apply(ctx, tx)
		out.Completed = set.finished
		return err
	})
	if err != nil {
		return Recorded{}, fmt.Errorf("record %d answers: %w", len(answers), err)
	}
	return out, nil
}

// inOrder returns the answers' indices by the ordinals they start with: parts that are written in the order of their
// key cost PostgreSQL a third less than shuffled ones.
func inOrder(answers []Answer) []int {
	order := make([]int, len(answers))
	for i := range order {
		order[i] = i
	}
	first := func(i int) Ordinal {
		if len(answers[i].Slots) == 0 {
			return -1
		}
		return answers[i].Slots[0].Ordinal
	}
	slices.SortStableFunc(order, func(a, b int) int { return int(first(a)) - int(first(b)) })
	return order
}

// tally holds one slice while the answers about it are taken.
type tally struct {
	*heldSlice
	retry   bitfield.Set // asked to be tried again
	service string
	whole   bool // one message held all the slots of the reply
	touched bool
}

// take accepts the slots that fit. A nil tally is a slice that does not exist.
func (t *tally) take(set *settlement, a *Answer) Verdict {
	if t == nil || !t.live() {
		return Verdict{Stale: true}
	}
	if t.Endpoint != a.Endpoint {
		return Verdict{Endpoint: t.Endpoint}
	}
	t.touched, t.service = true, a.Service
	t.took = max(t.took, a.Took)
	if a.Answered >= 0 {
		t.answered = a.Answered
		t.whole = t.whole || len(a.Slots) >= a.Answered
	}
	if a.Failure != nil {
		t.failure = a.Failure
	}
	var v Verdict
	for i := range a.Slots {
		t.slot(set, &a.Slots[i], &v)
	}
	return v
}

func (t *tally) slot(set *settlement, slot *Slot, v *Verdict) {
	block, bit := slot.Ordinal.Block()
	switch {
	case slot.Ordinal < 0 || block != t.Block || !t.Mask.Has(bit):
		v.Foreign = append(v.Foreign, slot.Ordinal)
	case !t.remaining.Has(bit) || t.retry.Has(bit):
		v.Duplicates++
	case slot.Err == nil:
		v.Taken++
		set.done(t.heldSlice, bit, slot.Result, slot.ContentType)
	case slot.Err.Retry && t.Failures+1 < t.policy.maxAttempts:
		v.Taken++
		t.retry.Add(bit)
		set.attemptFailed(t.heldSlice, bit, *slot.Err)
	default:
		v.Taken++
		set.fail(t.heldSlice, bit, *slot.Err)
	}
}

// close decides what becomes of the slice once all answers at hand are taken. Items to be tried again leave it for a
// slice of their own. It stays live while messages of its reply are still to come: that is, while no final message has
// come, or fewer slots were taken than the final one announced and it did not hold them all itself (slots for foreign
// items, or a second one for an item, are announced and not taken).
func (t *tally) close(set *settlement) {
	if !t.touched {
		return
	}
	if !t.retry.Empty() {
		set.pass(t.heldSlice, t.retry, CauseRetry, SlotError{})
	}
	complete := t.answered >= 0 && (t.whole || t.Mask.Count()-t.remaining.Count() >= t.answered)
	state := "recorded"
	switch {
	case t.remaining.Empty():
	case complete && t.failure != nil:
		if !t.failure.Retry { // the same request would fail again: on to the halves
			t.Failures = max(t.Failures, t.policy.maxAttempts-1)
		}
		set.pass(t.heldSlice, t.remaining, causeOf(t.failure), *t.failure)
	case complete:
		set.pass(t.heldSlice, t.remaining, CauseUnanswered, SlotError{Code: "unanswered",
			Message: "the service's reply left this item out"})
	default:
		state = t.state
	}
	set.end(t.heldSlice, state, t.service, t.failure)
}

// causeOf tells a chunk that was given up unanswered from one that a service failed.
func causeOf(failure *SlotError) Cause {
	if failure.Code == CodeDeliveries {
		return CauseExhausted
	}
	return CauseFailure
}
