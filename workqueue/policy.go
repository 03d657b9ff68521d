package workqueue

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue/throttling"
)

// policy is what a step says about tries.
type policy struct {
	maxAttempts int
	backoff     time.Duration
	maxBackoff  time.Duration // the longest pause; 0: maxBackoff
	retryCodes  []string      // tried again whatever the service says
	neverRetry  []string      // and never; it goes before retryCodes
}

const (
	// maxBackoff bounds the pause between two tries unless the step says otherwise.
	maxBackoff = 5 * time.Minute
	// breakerPause is how long items rest that failed because their endpoint is down. Its breaker keeps them longer.
	breakerPause = 2 * time.Second
	// countedIssues is how often items are issued before it counts as a failure of theirs that the service refuses them
	// because it is too much, or that their replies are lost: nothing goes on for ever.
	countedIssues = 50
	// throttledPause is the least pause after that, for steps that want none between tries.
	throttledPause = 100 * time.Millisecond
	// exhaustedPieces is into how many slices a chunk is cut that may have killed its services.
	exhaustedPieces = 4
)

// retries reports whether an error is worth another try: what the step says of its code goes before what the service
// says.
func (p policy) retries(e SlotError) bool {
	switch {
	case slices.Contains(p.neverRetry, e.Code):
		return false
	case slices.Contains(p.retryCodes, e.Code):
		return true
	default:
		return e.Retry
	}
}

// pause returns how long to wait before the try that follows the n-th failure: the step's backoff, doubled each time,
// with up to a fifth taken off at random so that what failed together does not come back together.
func (p policy) pause(n int) time.Duration { return jittered(p.longer(n)) }

// longer is the step's backoff after n failures.
func (p policy) longer(n int) time.Duration {
	longest := p.maxBackoff
	if longest <= 0 {
		longest = maxBackoff
	}
	d := p.backoff
	for ; n > 1 && d < longest; n-- {
		d *= 2
	}
	return min(d, longest)
}

// notNow reports whether an error of items in their n-th issue means that they came at a bad time, and no more.
func (p policy) notNow(e SlotError, n int) bool {
	return throttling.Is(e.Code) && p.retries(e) && n < countedIssues
}

// throttled returns how long to wait after the n-th issue was too much for the service: at least the step's backoff,
// doubled each time like any pause, and up to as much again at random: what was refused together is to come back
// spread out.
func (p policy) throttled(n int) time.Duration {
	p.backoff = max(p.backoff, throttledPause)
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

// ending is how an attempt came to an end that brought some of its items no outcome.
type ending struct {
	attempt  int   // of the slice that ended
	failures int   // of it
	origin   Cause // why that slice was made
	cause    Cause // why it ended
	hopeless bool  // the same request would fail again
}

// successor is a slice to be made from bits of another.
type successor struct {
	mask     bitfield.Set
	attempt  int
	failures int
	cause    Cause
	delay    time.Duration
}

// succeed decides what becomes of bits without an outcome: the slices to make, or final = true when the items have used
// up their attempts and stand alone, or when the reply itself singled them out.
//
// A chunk that failed as a whole is tried again whole once, if that may help and nothing in it has failed before. Then
// it is halved until the culprits stand alone. That its pieces fail is no failure of the items in them: most did
// nothing. An item that stands alone has the attempts that are left. One bad item in n so costs at most 2·⌈log2 n⌉
// slices beside its own attempts. A chunk that kills its services is not tried whole again, since each try costs
// services; it is cut in four, which takes as many slices as halving twice and half the rounds. A reply that cannot be
// read halves its chunk at once.
//
// It comes to an end: with each failure the slices become smaller or the items lose an attempt. Only what is not the
// items' fault (a lost node or stream, an endpoint that is down, a service that has too much to do) changes neither. Of
// silences without evidence only the first of a chunk and those of a lone item change nothing, and [Store.Blamed] ends
// them.
func (p policy) succeed(was ending, bits bitfield.Set) (next []successor, final bool) {
	again := successor{bits, was.attempt + 1, was.failures, was.cause, 0}
	n := bits.Count()
	if !was.cause.itemsAtFault() && (was.cause != CauseSilence || n == 1 || p.wholeAgain(was)) {
		again.delay = p.unblamed(was)
		return []successor{again}, false
	}
	singled := n == 1 || was.cause == CauseRetry || was.cause == CauseUnanswered
	if singled && (was.hopeless || was.failures+1 >= p.maxAttempts) {
		return nil, true
	}
	if singled || p.wholeAgain(was) {
		again.failures++
		again.delay = p.pause(again.failures)
		return []successor{again}, false
	}
	pieces, cause := 2, CauseBisect
	if was.cause == CauseExhausted {
		pieces, cause = exhaustedPieces, CauseExhausted
	}
	for _, piece := range bits.Split((n + pieces - 1) / pieces) {
		next = append(next, successor{piece, was.attempt + 1, was.failures, cause, 0})
	}
	return next, false
}

// unblamed is how long items rest that changed neither their chunk nor their attempts.
func (p policy) unblamed(was ending) time.Duration {
	switch was.cause {
	case CauseBreaker:
		return jittered(breakerPause)
	case CauseThrottled:
		return p.throttled(was.attempt)
	case CauseSilence:
		return p.pause(was.failures + 1)
	default:
		return 0
	}
}

// wholeAgain reports whether a chunk of several items that failed as a whole may be tried whole once more.
func (p policy) wholeAgain(was ending) bool {
	tried := was.failures > 0 || was.origin == CauseBisect || was.origin == CauseSilence
	may := was.cause == CauseFailure || was.cause == CauseDeadline || was.cause == CauseSilence
	return !tried && !was.hopeless && p.maxAttempts > 1 && may
}
