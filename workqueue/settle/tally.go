package settle

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
	"github.com/tranchehq/tranche/workqueue/pace"
)

type tally struct {
	*plane.HeldSlice
	retry      bitfield.Set // items to be retried
	refusals   []refusal    // why, slot by slot
	service    string
	whole      bool // one message held all the slots of the reply
	unreadable bool // a message of the reply could not be read
	touched    bool
	forced     bool // an operator keeps the breaker closed: unreachable servers do not count against the items
}

type refusal struct {
	bit int
	err workqueue.SlotError
}

// take accepts the slots that fit. A nil tally is a slice that does not exist.
func (t *tally) take(set *settlement, a *Answer) Verdict {
	if t == nil || !t.Live() {
		return Verdict{Stale: true}
	}
	if t.Endpoint != a.Endpoint {
		return Verdict{Endpoint: t.Endpoint}
	}
	t.touched, t.service = true, a.Service
	t.Took, t.Worked = max(t.Took, a.Took), max(t.Worked, a.Worked)
	t.unreadable = t.unreadable || a.Unreadable
	if a.Answered >= 0 {
		t.Answered = a.Answered
		t.whole = t.whole || len(a.Slots) >= a.Answered
	}
	if a.Failure != nil {
		t.Failure = &workqueue.SlotError{Code: a.Failure.Code, Message: a.Failure.Message,
			Retry: t.Policy.Retries(*a.Failure)}
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
	case !t.Remaining.Has(bit) || t.retry.Has(bit):
		v.Duplicates++
	case slot.Err == nil && t.MaxResult > 0 && slot.bytes() > int64(t.MaxResult):
		v.Taken++
		set.fail(t.HeldSlice, bit, workqueue.SlotError{Code: workqueue.CodeResultTooLarge, Message: fmt.Sprintf(
			"the result has %d bytes; max_result of the step is %d", slot.bytes(), t.MaxResult)})
	case slot.Err == nil:
		v.Taken++
		set.done(t.HeldSlice, bit, slot)
	case t.Policy.Retries(*slot.Err): // whether it may be retried is known when all slots are
		v.Taken++
		t.retry.Add(bit)
		t.refusals = append(t.refusals, refusal{bit, *slot.Err})
	default:
		v.Taken++
		set.fail(t.HeldSlice, bit, *slot.Err)
	}
}

func unanswered() workqueue.SlotError {
	return workqueue.SlotError{Code: "unanswered", Message: "the service's reply left this item out", Retry: true}
}

func (t *tally) left() bitfield.Set { return t.Remaining.AndNot(t.retry) }

// complete reports whether no message of the reply is missing: the last one came, and as many slots were accepted as
// it announced, or it held all slots itself. Foreign and duplicate slots are announced but not accepted.
func (t *tally) complete() bool {
	left := t.left()
	return t.unreadable || t.Answered >= 0 && (t.whole || t.Mask.Count()-left.Count() >= t.Answered)
}

// failing reports whether and how the slice fails entirely: all items are retried, or those without a slot fail.
func (t *tally) failing() (f pace.Failing, fails bool) {
	f = pace.Failing{Slice: t.HeldSlice, How: pace.EndedFailed}
	left := t.left()
	switch {
	case t.retry == t.Mask:
		f.How, f.Why = pace.EndedRefused, t.worst()
		f.Why.Message = fmt.Sprintf("every item is retried; the first for: %s", f.Why.Message)
		return f, true
	case left.Empty() || !t.complete():
		return f, false
	case t.Failure != nil:
		f.Why = *t.Failure
		return f, true
	case left == t.Mask:
		f.Why = unanswered()
		return f, true
	}
	return f, false
}

// worst is an error of the refused slots, preferably not a throttling one.
func (t *tally) worst() workqueue.SlotError {
	for _, r := range t.refusals {
		if !workqueue.Throttled(r.err.Code) {
			return r.err
		}
	}
	return t.refusals[0].err
}

// closeAll decides the fate of the slices after all answers were taken. It reads recent outcomes only if one failed.
func closeAll(ctx context.Context, tx pgx.Tx, set *settlement, held []*plane.HeldSlice,
	tallies map[workqueue.SliceID]*tally,
) error {
	var fails []pace.Failing
	for _, h := range held {
		t := tallies[h.ID]
		if f, ok := t.failing(); t.touched && ok && f.TellsOfAnOutage() {
			fails = append(fails, f)
		}
	}
	var spared map[workqueue.SliceID]bool
	if len(fails) > 0 {
		var err error
		if spared, err = pace.Outages(ctx, tx, fails); err != nil {
			return err
		}
	}
	if err := forceClosed(ctx, tx, tallies); err != nil {
		return err
	}
	for _, h := range held {
		if t := tallies[h.ID]; t.touched {
			t.close(set, spared[h.ID])
		}
	}
	return nil
}

// forceClosed finds, for unreachable servers, whether an operator keeps the breaker closed.
func forceClosed(ctx context.Context, tx pgx.Tx, tallies map[workqueue.SliceID]*tally) (err error) {
	byHand := map[string]bool{}
	for _, t := range tallies {
		if !t.unreached() {
			continue
		}
		if _, known := byHand[t.Endpoint]; !known {
			if byHand[t.Endpoint], err = pace.ClosedByHand(ctx, tx, t.Endpoint); err != nil {
				return err
			}
		}
		t.forced = byHand[t.Endpoint]
	}
	return nil
}

func (t *tally) unreached() bool {
	return t.Failure != nil && pace.Unreached(t.Failure.Code) ||
		slices.ContainsFunc(t.refusals, func(r refusal) bool { return pace.Unreached(r.err.Code) })
}

// close decides the fate of one slice. Items to be retried move to a new slice. It stays live while messages of its
// reply are missing. spared: it failed because its endpoint is down.
func (t *tally) close(set *settlement, spared bool) {
	f, fails := t.failing()
	complete, left := t.complete(), t.left()
	t.closeRefused(set, spared)
	state, why := "recorded", (*workqueue.SlotError)(nil)
	if fails {
		why = &f.Why
	}
	switch {
	case left.Empty():
	case !complete:
		state, why = t.State, t.Failure // for the message that completes it
	case spared || t.forced && t.Failure != nil && t.Failure.Retry && pace.Unreached(t.Failure.Code):
		set.pass(t.HeldSlice, left, workqueue.CauseBreaker, f.Why)
	case t.Failure != nil:
		set.pass(t.HeldSlice, left, t.cause(), *t.Failure)
	default:
		set.pass(t.HeldSlice, left, workqueue.CauseUnanswered, unanswered())
	}
	if state == "recorded" {
		set.answered(t.Endpoint, why)
	}
	set.end(t.HeldSlice, state, t.service, why)
}

// closeRefused passes on the items to be retried, or fails those without attempts left. Throttled ones go separately.
func (t *tally) closeRefused(set *settlement, spared bool) {
	var again, later, spare bitfield.Set
	spent := t.Failures+1 >= t.Policy.MaxAttempts
	for _, r := range t.refusals {
		switch {
		case t.Policy.NotNow(r.err, t.Attempt):
			later.Add(r.bit)
		case spared || t.forced && pace.Unreached(r.err.Code):
			spare.Add(r.bit)
		case spent:
			set.fail(t.HeldSlice, r.bit, r.err)
			continue
		default:
			again.Add(r.bit)
		}
		set.attemptFailed(t.HeldSlice, r.bit, r.err)
	}
	for _, p := range []struct {
		bits  bitfield.Set
		cause workqueue.Cause
	}{{again, workqueue.CauseRetry}, {spare, workqueue.CauseBreaker}, {later, workqueue.CauseThrottled}} {
		if !p.bits.Empty() {
			set.pass(t.HeldSlice, p.bits, p.cause, workqueue.SlotError{Retry: true})
		}
	}
}

func (t *tally) cause() workqueue.Cause {
	switch {
	case t.unreadable:
		return workqueue.CauseUnreadable
	case t.Failure.Code == workqueue.CodeDeliveries: // abandoned unanswered, not failed by a service
		return workqueue.CauseExhausted
	case t.Policy.NotNow(*t.Failure, t.Attempt):
		return workqueue.CauseThrottled
	default:
		return workqueue.CauseFailure
	}
}
