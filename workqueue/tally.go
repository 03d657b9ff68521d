package workqueue

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue/throttling"
)

// tally holds one slice while the answers about it are taken.
type tally struct {
	*heldSlice
	retry      bitfield.Set // asked to be tried again
	refusals   []refusal    // why, slot by slot
	service    string
	whole      bool // one message held all the slots of the reply
	unreadable bool // a message of the reply could not be read
	touched    bool
}

// refusal is a slot with an error that is worth another try.
type refusal struct {
	bit int
	err SlotError
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
	t.unreadable = t.unreadable || a.Unreadable
	if a.Answered >= 0 {
		t.answered = a.Answered
		t.whole = t.whole || len(a.Slots) >= a.Answered
	}
	if a.Failure != nil {
		t.failure = &SlotError{a.Failure.Code, a.Failure.Message, t.policy.retries(*a.Failure)}
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
	case t.policy.retries(*slot.Err): // whether it may be tried again is known when all slots are
		v.Taken++
		t.retry.Add(bit)
		t.refusals = append(t.refusals, refusal{bit, *slot.Err})
	default:
		v.Taken++
		set.fail(t.heldSlice, bit, *slot.Err)
	}
}

// unanswered is the error of an item that the final message of a reply left out.
func unanswered() SlotError {
	return SlotError{Code: "unanswered", Message: "the service's reply left this item out", Retry: true}
}

// left is the items that no slot has come for.
func (t *tally) left() bitfield.Set { return t.remaining.AndNot(t.retry) }

// complete reports whether no message of the reply is still to come: the final one has come, and as many slots were
// taken as it announced, or it held all of them itself (slots for foreign items, or a second one for an item, are
// announced and not taken).
func (t *tally) complete() bool {
	left := t.left()
	return t.unreadable || t.answered >= 0 && (t.whole || t.Mask.Count()-left.Count() >= t.answered)
}

// failing says how the slice fails as a whole, if it does: nothing came of it that would not be tried again, or the
// items that no slot has come for fail together.
func (t *tally) failing() (f failing, fails bool) {
	f = failing{slice: t.heldSlice, how: endedFailed}
	left := t.left()
	switch {
	case t.retry == t.Mask:
		f.how, f.why = endedRefused, t.worst()
		f.why.Message = fmt.Sprintf("every item is to be tried again, the first for: %s", f.why.Message)
		return f, true
	case left.Empty() || !t.complete():
		return f, false
	case t.failure != nil:
		f.why = *t.failure
		return f, true
	case left == t.Mask:
		f.why = unanswered()
		return f, true
	}
	return f, false
}

// worst is an error of the refused slots that tells more than that it was too much, if there is one.
func (t *tally) worst() SlotError {
	for _, r := range t.refusals {
		if !throttling.Is(r.err.Code) {
			return r.err
		}
	}
	return t.refusals[0].err
}

// closeAll decides what becomes of the slices once all answers at hand are taken. What their endpoints did lately is
// asked only when one of them failed.
func closeAll(ctx context.Context, tx pgx.Tx, set *settlement, held []*heldSlice, tallies map[SliceID]*tally) error {
	var fails []failing
	for _, h := range held {
		t := tallies[h.ID]
		if f, ok := t.failing(); t.touched && ok && f.tellsOfAnOutage() {
			fails = append(fails, f)
		}
	}
	var spared map[SliceID]bool
	if len(fails) > 0 {
		var err error
		if spared, err = outages(ctx, tx, fails); err != nil {
			return err
		}
	}
	for _, h := range held {
		if t := tallies[h.ID]; t.touched {
			t.close(set, spared[h.ID])
		}
	}
	return nil
}

// close decides what becomes of one slice. Items to be tried again leave it for a slice of their own. It stays live
// while messages of its reply are still to come. A slice that is spared failed because its endpoint is down.
func (t *tally) close(set *settlement, spared bool) {
	f, fails := t.failing()
	complete, left := t.complete(), t.left()
	t.closeRefused(set, spared)
	state, why := "recorded", (*SlotError)(nil)
	if fails {
		why = &f.why
	}
	switch {
	case left.Empty():
	case !complete:
		state, why = t.state, t.failure // for the message that completes it
	case spared:
		set.pass(t.heldSlice, left, CauseBreaker, f.why)
	case t.failure != nil:
		set.pass(t.heldSlice, left, t.cause(), *t.failure)
	default:
		set.pass(t.heldSlice, left, CauseUnanswered, unanswered())
	}
	set.end(t.heldSlice, state, t.service, why)
}

// closeRefused hands on the items that are to be tried again, or fails those that have no attempt left. Those that came
// at a bad time go on for themselves.
func (t *tally) closeRefused(set *settlement, spared bool) {
	var again, later bitfield.Set
	spent := !spared && t.Failures+1 >= t.policy.maxAttempts
	for _, r := range t.refusals {
		notNow := t.policy.notNow(r.err, t.Attempt)
		switch {
		case !notNow && spent:
			set.fail(t.heldSlice, r.bit, r.err)
			continue
		case notNow:
			later.Add(r.bit)
		default:
			again.Add(r.bit)
		}
		set.attemptFailed(t.heldSlice, r.bit, r.err)
	}
	cause := CauseRetry
	if spared {
		cause = CauseBreaker
	}
	if !again.Empty() {
		set.pass(t.heldSlice, again, cause, SlotError{Retry: true})
	}
	if !later.Empty() {
		set.pass(t.heldSlice, later, CauseThrottled, SlotError{Retry: true})
	}
}

// cause is why the items fail that no slot has come for.
func (t *tally) cause() Cause {
	switch {
	case t.unreadable:
		return CauseUnreadable
	case t.failure.Code == CodeDeliveries: // given up unanswered, and not failed by a service
		return CauseExhausted
	case t.policy.notNow(*t.failure, t.Attempt):
		return CauseThrottled
	default:
		return CauseFailure
	}
}
