package plane

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
)

// Policy is what a step says about tries.
type Policy struct {
	MaxAttempts  int
	Backoff      time.Duration
	MaxBackoff   time.Duration // the longest pause; 0: maxBackoff
	RetryCodes   []string      // retried whatever the service says
	NoRetryCodes []string      // and never; it goes before RetryCodes
}

const (
	// maxBackoff bounds the pause between two tries unless the step says otherwise.
	maxBackoff = 5 * time.Minute
	// breakerPause is how long items rest that failed because their endpoint is down. Its breaker keeps them longer.
	breakerPause = 2 * time.Second
	// CountedIssues is how often items are issued before it counts as a failure of theirs that the service refuses them
	// because it is too much, or that their replies are lost: nothing goes on indefinitely.
	CountedIssues = 50
	// throttledPause is the least pause after that, for steps that want none between tries.
	throttledPause = 100 * time.Millisecond
	// exhaustedPieces is into how many slices a chunk is cut that may have killed its services.
	exhaustedPieces = 4
)

// Retries reports whether an error is worth another try: what the step says of its code goes before what the service
// says.
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

// Pause returns how long to wait before the try that follows the n-th failure: the step's backoff, doubled each time,
// with up to a fifth taken off at random so that what failed together does not come back together.
func (p Policy) Pause(n int) time.Duration { return jittered(p.longer(n)) }

// longer is the step's backoff after n failures.
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

// NotNow reports whether an error of items in their n-th issue means that they came at a bad time, and no more.
func (p Policy) NotNow(e workqueue.SlotError, n int) bool {
	return workqueue.Throttled(e.Code) && p.Retries(e) && n < CountedIssues
}

// Throttled returns how long to wait after the n-th issue was too much for the service: at least the step's backoff,
// doubled each time like any pause, and up to as much again at random: what was refused together is to come back
// spread out.
func (p Policy) Throttled(n int) time.Duration {
	p.Backoff = max(p.Backoff, throttledPause)
	d := max(p.longer(n), throttledPause)
	return d + time.Duration(rand.Int64N(int64(d)+1))
}

// jittered takes up to a fifth off d.
func jittered(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return d - time.Duration(rand.Int64N(int64(d)/5+1))
}

// Ending is how an attempt came to an end that brought some of its items no outcome.
type Ending struct {
	Attempt  int             // of the slice that ended
	Failures int             // of it
	Origin   workqueue.Cause // why that slice was made
	Cause    workqueue.Cause // why it ended
	Hopeless bool            // the same request would fail again
}

// Successor is a slice to be made from bits of another.
type Successor struct {
	Mask     bitfield.Set
	Attempt  int
	Failures int
	Cause    workqueue.Cause
	Delay    time.Duration
}

// Succeed decides what becomes of bits without an outcome: the slices to make, or final = true when the items have used
// up their attempts and stand alone, or when the reply itself singled them out.
//
// A chunk that failed as a whole is retried whole once, if that may help and nothing in it has failed before. Then
// it is halved until the culprits stand alone. That its pieces fail is no failure of the items in them: most did
// nothing. An item that stands alone has the attempts that are left. One bad item in n so costs at most 2·⌈log2 n⌉
// slices beside its own attempts. A chunk that kills its services is not tried whole again, since each try costs
// services; it is cut in four, which takes as many slices as halving twice and half the rounds. A reply that cannot be
// read halves its chunk at once.
//
// It comes to an end: with each failure the slices become smaller or the items lose an attempt. Only what is not the
// items' fault (a lost node or stream, an endpoint that is down, a service that has too much to do) changes neither. Of
// silences without evidence only the first of a chunk and those of a lone item change nothing, and
// [settle.Store.Blamed] ends them.
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

// unblamed is how long items rest that changed neither their chunk nor their attempts.
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

// wholeAgain reports whether a chunk of several items that failed as a whole may be tried whole again.
func (p Policy) wholeAgain(was Ending) bool {
	tried := was.Failures > 0 || was.Origin == workqueue.CauseBisect || was.Origin == workqueue.CauseSilence
	may := was.Cause == workqueue.CauseFailure || was.Cause == workqueue.CauseDeadline ||
		was.Cause == workqueue.CauseSilence
	return !tried && !was.Hopeless && p.MaxAttempts > 1 && may
}
