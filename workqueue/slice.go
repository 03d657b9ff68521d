package workqueue

import (
	"fmt"
	"strings"

	"github.com/tranchehq/tranche/bitfield"
)

// Cause says why a slice was made.
type Cause string

// The causes of a slice.
const (
	CauseReady      Cause = "ready"      // from items that were ready
	CauseRetry      Cause = "retry"      // the service asked for these items to be retried
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

// Outcome is where an item stands as its owner sees it.
type Outcome string

// The outcomes. An item is done when every step is done with it, failed when one step is, and missing otherwise.
const (
	OutcomeDone    Outcome = "done"
	OutcomeFailed  Outcome = "failed"
	OutcomeMissing Outcome = "missing"
)

// StepChoiceError is returned for an export that names no step of the run, where one must be named.
type StepChoiceError struct {
	Step  string   // that was named; "": none
	Steps []string // that there are, or that have results
}

func (e *StepChoiceError) Error() string {
	if e.Step == "" {
		return fmt.Sprintf("the results of the run are those of several steps (%s); name one of its steps",
			strings.Join(e.Steps, ", "))
	}
	return fmt.Sprintf("the run has no step %.80q; it has %s", e.Step, strings.Join(e.Steps, ", "))
}

// SlotError is an error in the place of a result.
type SlotError struct {
	Code    string // a short token, for grouping
	Message string
	Retry   bool // the same request may succeed later
}

// BreakerState says whether an endpoint is asked at all.
type BreakerState string

// The states of a breaker.
const (
	BreakerClosed BreakerState = "closed"
	BreakerOpen   BreakerState = "open" // most requests failed: one item at a time is sent, to see whether it is up again
)

// FailFast says when the first outcomes of a step tell that it is no use to go on: of the first Within of them,
// Failures are of one code and would not pass by trying again. The zero rule holds nothing.
type FailFast struct{ Failures, Within int }

// DefaultFailFast is the rule of plans that set none. A run with fewer items than Failures is never held by it: all of
// them are in flight before anyone could look.
func DefaultFailFast() FailFast { return FailFast{Failures: 200, Within: 400} }

// maxFailFast bounds the outcomes that a fail-fast limit looks at: recorders take turns until they are over.
const maxFailFast = 10_000

// FailFastOff is the text of the zero rule.
const FailFastOff = "off"

// ErrFailFast says what a fail-fast limit may be.
var ErrFailFast = fmt.Errorf("want failures N of the first M outcomes, like 200/400, at most %d; or %s", maxFailFast,
	FailFastOff)

// ParseFailFast reads a rule: "200/400", or "off". An empty text is [DefaultFailFast].
func ParseFailFast(text string) (FailFast, error) {
	switch text {
	case "":
		return DefaultFailFast(), nil
	case FailFastOff:
		return FailFast{}, nil
	}
	failures, within, found := strings.Cut(text, "/")
	if !found {
		return FailFast{}, ErrFailFast
	}
	n, err := WholeNumber(failures)
	m, err2 := WholeNumber(within)
	if err != nil || err2 != nil || n < 1 || m < n || m > maxFailFast {
		return FailFast{}, ErrFailFast
	}
	return FailFast{Failures: n, Within: m}, nil
}

// Trips reports whether so many failures of one code among the first outcomes are enough. When outcomes are recorded
// together that are more than Within, they are enough in proportion.
func (g FailFast) Trips(failures, outcomes int) bool {
	return g.Failures > 0 && failures >= g.Failures && failures*g.Within >= g.Failures*outcomes
}

// String writes the one form in which plans and runs keep a rule.
func (g FailFast) String() string {
	if g == (FailFast{}) {
		return FailFastOff
	}
	return fmt.Sprintf("%d/%d", g.Failures, g.Within)
}

// CanonicalFailFast reads a rule and writes it in its one form.
func CanonicalFailFast(text string) (string, error) {
	if text == "" {
		return "", ErrFailFast
	}
	rule, err := ParseFailFast(text)
	return rule.String(), err
}
