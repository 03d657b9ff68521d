package plane

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
)

// Policy is a step's retry policy.
type Policy struct {
	MaxAttempts  int
	Backoff      time.Duration
	MaxBackoff   time.Duration // longest pause; 0: maxBackoff
	RetryCodes   []string      // retried regardless of the service
	NoRetryCodes []string      // never retried; overrides RetryCodes
}

const (
	// maxBackoff is the default longest pause between two attempts.
	maxBackoff = 5 * time.Minute
	// breakerPause is the pause of items that failed because their endpoint is down. The breaker holds them longer.
	breakerPause = 2 * time.Second
	// CountedIssues is how often items are issued before overload or lost replies count as their failure.
	CountedIssues = 50
	// throttledPause is the shortest pause after a refusal for overload, even if the step's backoff is shorter.
	throttledPause = 100 * time.Millisecond
	// exhaustedPieces is how many slices a chunk is cut into that may have crashed its services.
	exhaustedPieces = 4
)

// Retries reports whether an error is worth a retry. The step's codes override the service.
func (p Policy) Retries(e workqueue.SlotError) bool {
	switch {
	case slices.Contains(p.NoRetryCodes, e.Code):
		return false
	case slices.Contains(p.RetryCodes, e.Code):
		return true
	default:
		return e.Retry
	}
}

// Pause returns the wait after the n-th failure: the step's backoff, doubled each time, minus up to a fifth at
// random, so that items that failed together are not retried together.
func (p Policy) Pause(n int) time.Duration { return jittered(p.longer(n)) }

func (p Policy) longer(n int) time.Duration {
	longest := p.MaxBackoff
	if longest <= 0 {
		longest = maxBackoff
	}
	d := p.Backoff
	for ; n > 1 && d < longest; n-- {
		d *= 2
	}
	return min(d, longest)
}

// NotNow reports whether an error of items in their n-th issue only means bad timing.
func (p Policy) NotNow(e workqueue.SlotError, n int) bool {
	return workqueue.Throttled(e.Code) && p.Retries(e) && n < CountedIssues
}

// Throttled returns the wait after a refusal for overload of the n-th issue: at least the step's backoff, doubled
// like any pause, plus up to as much at random, to spread the retries.
func (p Policy) Throttled(n int) time.Duration {
	p.Backoff = max(p.Backoff, throttledPause)
	d := max(p.longer(n), throttledPause)
	return d + time.Duration(rand.Int64N(int64(d)+1))
}

func jittered(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return d - time.Duration(rand.Int64N(int64(d)/5+1))
}

// Ending is the end of an attempt that left some items without an outcome.
type Ending struct {
	Attempt  int             // of the ended slice
	Failures int             // of the ended slice
	Origin   workqueue.Cause // why that slice was made
	Cause    workqueue.Cause // why it ended
	Hopeless bool            // the same request would fail again
}

// Successor is a slice to be made from items of another.
type Successor struct {
	Mask     bitfield.Set
	Attempt  int
	Failures int
	Cause    workqueue.Cause
	Delay    time.Duration
}

// Succeed decides about items without an outcome: it returns the slices to make, or final = true if the items have
// no attempts left and are alone, or the reply itself singled them out.
//
// A chunk that failed entirely is retried whole once, if that may help and nothing in it has failed before. Then it
// is halved until the culprits are alone. Failed pieces do not count against their items: most did nothing
// wrong. An item that is alone has its remaining attempts. So one bad item in n costs at most 2·⌈log2 n⌉ slices
// beyond its own attempts. A chunk that crashes its services is not retried whole, since each try costs services; it
// is cut in four, which takes as many slices as halving twice in half the rounds. An unreadable reply halves its
// chunk immediately.
//
// It terminates: with each failure the slices get smaller or the items lose an attempt. Only causes that are not the
// items' fault change neither: a lost node or stream, an endpoint that is down, an overloaded service. Of silences
// without evidence, only the first of a chunk and those of a lone item change nothing, and [settle.Store.Blamed]
// ends them.
func (p Policy) Succeed(was Ending, bits bitfield.Set) (next []Successor, final bool) {
	again := Successor{bits, was.Attempt + 1, was.Failures, was.Cause, 0}
	n := bits.Count()
	if !was.Cause.ItemsAtFault() && (was.Cause != workqueue.CauseSilence || n == 1 || p.wholeAgain(was)) {
		again.Delay = p.unblamed(was)
		return []Successor{again}, false
	}
	singled := n == 1 || was.Cause == workqueue.CauseRetry || was.Cause == workqueue.CauseUnanswered
	if singled && (was.Hopeless || was.Failures+1 >= p.MaxAttempts) {
		return nil, true
	}
	if singled || p.wholeAgain(was) {
		again.Failures++
		again.Delay = p.Pause(again.Failures)
		return []Successor{again}, false
	}
	pieces, cause := 2, workqueue.CauseBisect
	if was.Cause == workqueue.CauseExhausted {
		pieces, cause = exhaustedPieces, workqueue.CauseExhausted
	}
	for _, piece := range bits.Split((n + pieces - 1) / pieces) {
		next = append(next, Successor{piece, was.Attempt + 1, was.Failures, cause, 0})
	}
	return next, false
}

// unblamed is the pause of items that keep their chunk and attempts.
func (p Policy) unblamed(was Ending) time.Duration {
	switch was.Cause {
	case workqueue.CauseBreaker:
		return jittered(breakerPause)
	case workqueue.CauseThrottled:
		return p.Throttled(was.Attempt)
	case workqueue.CauseSilence:
		return p.Pause(was.Failures + 1)
	default:
		return 0
	}
}

// wholeAgain reports whether a chunk of several items that failed entirely may be retried whole.
func (p Policy) wholeAgain(was Ending) bool {
	tried := was.Failures > 0 || was.Origin == workqueue.CauseBisect || was.Origin == workqueue.CauseSilence
	may := was.Cause == workqueue.CauseFailure || was.Cause == workqueue.CauseDeadline ||
		was.Cause == workqueue.CauseSilence
	return !tried && !was.Hopeless && p.MaxAttempts > 1 && may
}
