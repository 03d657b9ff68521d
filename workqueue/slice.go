package workqueue

import (
	"math/rand/v2"
	"time"

	"github.com/tranchehq/tranche/bitfield"
)

// Cause says why a slice was made.
type Cause string

// The causes of a slice.
const (
	CauseCut        Cause = "cut"        // from items that were ready
	CauseRetry      Cause = "retry"      // the service asked for these items to be tried again
	CauseUnanswered Cause = "unanswered" // the final reply left these items out
	CauseFailure    Cause = "failure"    // the service failed the chunk as a whole
	CauseDeadline   Cause = "deadline"   // no reply came in time
	CauseSession    Cause = "session"    // the node that had claimed it is gone
	CauseHandBack   Cause = "handback"   // the node that had claimed it stopped in good order
	CausePipe       Cause = "pipe"       // a stream was lost or recreated, and the request or its reply with it
	CauseSplit      Cause = "split"      // the request would have been larger than the server takes
	CauseBisect     Cause = "bisect"     // half of a chunk that used up its attempts
	CauseExhausted  Cause = "exhausted"  // delivered again and again and never answered: it may kill its services
	CauseUnreadable Cause = "unreadable" // the service's reply could not be read
	CauseBreaker    Cause = "breaker"    // failed while its endpoint was known to be down
	CauseProbe      Cause = "probe"      // one item, sent to see whether an endpoint is up again
)

// CodeDeliveries is the error code of a chunk that was given up after too many deliveries. The services' SDK answers
// with it; a node records it for a request that JetStream delivers no more.
const CodeDeliveries = "too_many_deliveries"

// itemsAtFault reports whether an attempt that ended so counts against the items' attempts.
func (c Cause) itemsAtFault() bool {
	switch c {
	case CauseRetry, CauseUnanswered, CauseFailure, CauseDeadline, CauseExhausted:
		return true
	default:
		return false
	}
}

// answered reports whether a service lived to answer an attempt that ended so.
func (c Cause) answered() bool {
	switch c {
	case CauseRetry, CauseUnanswered, CauseFailure:
		return true
	default:
		return false
	}
}

// Slice is one attempt at one chunk, as its claimer gets it.
type Slice struct {
	ID         SliceID
	Run        RunID
	Step       Step
	Block      Block
	Generation Generation
	Mask       bitfield.Set
	Attempt    int // how often these items have been issued, this time included
	Failures   int // of those, how often they were at fault
	Cause      Cause
	Suspect    bool    // a piece of a chunk that may have killed its services, and no service has answered it since
	Root       SliceID // the cut that its items came from; its own id for a cut
	Endpoint   string  // where it is sent, or was
}

// policy is what a step says about tries.
type policy struct {
	maxAttempts int
	backoff     time.Duration
	maxBackoff  time.Duration // the longest pause; 0: maxBackoff
	retryCodes  []string      // tried again whatever the service says
	neverRetry  []string      // and never
}

// maxBackoff bounds the pause between two tries.
const maxBackoff = 5 * time.Minute

// pause returns how long to wait before the try that follows the n-th failure: the step's backoff, doubled each time,
// with up to a fifth taken off at random so that what failed together does not come back together.
func (p policy) pause(n int) time.Duration {
	d := p.backoff
	for ; n > 1 && d < maxBackoff; n-- {
		d *= 2
	}
	d = min(d, maxBackoff)
	if d <= 0 {
		return 0
	}
	return d - time.Duration(rand.Int64N(int64(d)/5+1))
}

// successor is a slice to be made from bits of another.
type successor struct {
	mask     bitfield.Set
	attempt  int
	failures int
	cause    Cause
	delay    time.Duration
}

// exhaustedPieces is into how many slices a chunk is cut that may have killed its services.
const exhaustedPieces = 4

// succeed decides what becomes of the bits of a slice that ended for a cause without an outcome for them: the slices to
// make, or final = true when the items have used up their attempts and stand alone.
//
// A chunk that failed as a whole is tried again whole while it has attempts; then it is halved, each half with one try,
// until the culprits stand alone; items that were singled out by the reply itself are not cut further. One bad item in
// n so costs its attempts and at most 2·⌈log2 n⌉ slices more.
//
// A chunk that was delivered too many times without an answer has most likely killed a service with every delivery. It
// is not tried whole again: each try would cost some services more, and the others their time. It is cut at once, in
// four, which takes as many slices as halving twice and half the rounds, and a round is what costs services. The pieces
// keep their attempts, since most of their items did nothing; a single item that is given up so loses one.
func (p policy) succeed(attempt, failures int, bits bitfield.Set, cause Cause) (next []successor, final bool) {
	if !cause.itemsAtFault() {
		return []successor{{mask: bits, attempt: attempt + 1, failures: failures, cause: cause}}, false
	}
	n := bits.Count()
	if cause == CauseExhausted && n > 1 {
		for _, piece := range bits.Split((n + exhaustedPieces - 1) / exhaustedPieces) {
			next = append(next, successor{piece, attempt + 1, failures, cause, 0})
		}
		return next, false
	}
	failures++
	if failures < p.maxAttempts {
		return []successor{{bits, attempt + 1, failures, cause, p.pause(failures)}}, false
	}
	if n == 1 || cause == CauseRetry || cause == CauseUnanswered {
		return nil, true
	}
	for _, half := range bits.Split((n + 1) / 2) {
		next = append(next, successor{half, attempt + 1, p.maxAttempts - 1, CauseBisect, 0})
	}
	return next, false
}
