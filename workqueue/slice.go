package workqueue

import (
	"github.com/tranchehq/tranche/bitfield"
)

// Cause says why a slice was made.
type Cause string

// The causes of a slice.
const (
	CauseReady      Cause = "ready"      // from items that were ready
	CauseRetry      Cause = "retry"      // the service asked for these items to be tried again
	CauseUnanswered Cause = "unanswered" // the final reply left these items out
	CauseFailure    Cause = "failure"    // the service failed the chunk as a whole
	CauseDeadline   Cause = "deadline"   // no reply came in time, although the services answered others
	CauseSilence    Cause = "silence"    // no reply came in time, and nothing says that it was because of the items
	CauseSession    Cause = "session"    // the node that had claimed it is gone
	CauseHandBack   Cause = "handback"   // the node that had claimed it stopped in good order
	CauseStreams    Cause = "streams"    // a stream was lost or recreated, and the request or its reply with it
	CauseLost       Cause = "lost"       // the request was acknowledged, and no reply to it is there
	CauseSplit      Cause = "split"      // the request would have been larger than the server takes
	CauseBisect     Cause = "bisect"     // half of a chunk that failed as a whole
	CauseExhausted  Cause = "exhausted"  // delivered again and again and never answered: it may kill its services
	CauseUnreadable Cause = "unreadable" // the service's reply could not be read
	CauseBreaker    Cause = "breaker"    // failed while its endpoint was known to be down
	CauseThrottled  Cause = "throttled"  // the service refused these items, or the chunk, because it was too much
	CauseProbe      Cause = "probe"      // one item, sent to see whether an endpoint is up again
)

// CodeDeliveries is the error code of a chunk that was given up after too many deliveries. The services' SDK answers
// with it; a node records it for a request that JetStream delivers no more.
const CodeDeliveries = "too_many_deliveries"

// CodeResultTooLarge is the error of an item whose result is larger than its step takes: services answer so, too.
const CodeResultTooLarge = "result_too_large"

// CodeBadPart is the code of items whose part of another step, which the message names, does not fit: docs/protocol.md.
const CodeBadPart = "bad_part"

// ItemsAtFault reports whether an attempt that ended so counts against the items' attempts.
func (c Cause) ItemsAtFault() bool {
	switch c {
	case CauseRetry, CauseUnanswered, CauseFailure, CauseDeadline, CauseExhausted, CauseUnreadable:
		return true
	default:
		return false
	}
}

// Answered reports whether a service lived to answer an attempt that ended so.
func (c Cause) Answered() bool {
	switch c {
	case CauseRetry, CauseUnanswered, CauseFailure, CauseUnreadable, CauseThrottled:
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

// Sent is a slice whose request JetStream has acknowledged.
type Sent struct {
	ID           SliceID
	StreamSeq    int64
	StreamsEpoch int64
}
