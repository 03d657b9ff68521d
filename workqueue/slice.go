package workqueue

import (
	"fmt"
	"strings"

	"github.com/tranchehq/tranche/bitfield"
)

// Cause is why a slice was made.
type Cause string

// The causes of a slice.
const (
	CauseReady      Cause = "ready"      // from ready items
	CauseRetry      Cause = "retry"      // the service asked to retry these items
	CauseUnanswered Cause = "unanswered" // the complete reply left these items out
	CauseFailure    Cause = "failure"    // the service failed the whole chunk
	CauseDeadline   Cause = "deadline"   // no reply before the deadline, although the services answered others
	CauseSilence    Cause = "silence"    // no reply before the deadline, and no sign that the items are to blame
	CauseSession    Cause = "session"    // the node that claimed it died
	CauseHandBack   Cause = "handback"   // the node that claimed it stopped normally
	CauseStreams    Cause = "streams"    // a stream was lost or recreated, with the request or its reply
	CauseRerouted   Cause = "rerouted"   // no service received the request before requests went to another endpoint
	CauseLost       Cause = "lost"       // the request was acknowledged, but no reply exists
	CauseSplit      Cause = "split"      // the request would have exceeded the server's limit
	CauseBisect     Cause = "bisect"     // half of a chunk that failed entirely
	CauseExhausted  Cause = "exhausted"  // delivered repeatedly and never answered: it may crash its services
	CauseUnreadable Cause = "unreadable" // the service's reply could not be read
	CauseBreaker    Cause = "breaker"    // failed while its endpoint was known to be down
	CauseThrottled  Cause = "throttled"  // the service refused these items, or the chunk, as excess load
	CauseProbe      Cause = "probe"      // one item, sent to test whether an endpoint is up again
)

// CodeDeliveries is the error code of a chunk abandoned after too many deliveries, by the services' SDK or a node.
const CodeDeliveries = "too_many_deliveries"

// CodeResultTooLarge is the error code of an item whose result exceeds its step's limit. Services use it, too.
const CodeResultTooLarge = "result_too_large"

// CodeBadPart is the code of items whose part of another step, named in the message, is bad: docs/protocol.md.
const CodeBadPart = "bad_part"

// ItemsAtFault reports whether an attempt with this end counts against the items' attempts.
func (c Cause) ItemsAtFault() bool {
	switch c {
	case CauseRetry, CauseUnanswered, CauseFailure, CauseDeadline, CauseExhausted, CauseUnreadable:
		return true
	default:
		return false
	}
}

// Answered reports whether a service answered an attempt with this end.
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
	Attempt    int // how often these items have been issued, including this time
	Failures   int // how many of those were the items' fault
	Cause      Cause
	Suspect    bool    // a piece of a chunk that may have crashed its services, not answered by any since
	Root       SliceID // the cut that its items came from; its own ID for a cut
	Endpoint   string  // where it is or was sent
}

// Sent is a slice whose request JetStream acknowledged.
type Sent struct {
	ID           SliceID
	StreamSeq    int64
	StreamsEpoch int64
}

// Outcome is an item's state as its owner sees it.
type Outcome string

// The outcomes. An item is done when every step is done with it, failed when one step is, and missing otherwise.
const (
	OutcomeDone    Outcome = "done"
	OutcomeFailed  Outcome = "failed"
	OutcomeMissing Outcome = "missing"
)

// StepChoiceError is returned for an export that must name a step of the run and does not.
type StepChoiceError struct {
	Step  string   // the named one; "": none
	Steps []string // existing ones, or those with results
}

func (e *StepChoiceError) Error() string {
	if e.Step == "" {
		return fmt.Sprintf("the results of the run are those of several steps (%s); name one of its steps",
			strings.Join(e.Steps, ", "))
	}
	return fmt.Sprintf("the run has no step %.80q; it has %s", e.Step, strings.Join(e.Steps, ", "))
}

// SlotError is an error in place of a result.
type SlotError struct {
	Code    string // a short token, for grouping
	Message string
	Retry   bool // the same request may succeed later
}

// BreakerState says whether requests are sent to an endpoint.
type BreakerState string

// The states of a breaker.
const (
	BreakerClosed BreakerState = "closed"
	BreakerOpen   BreakerState = "open" // most requests failed: probes of one item test whether it is up
)

// FailFast says when a step's first outcomes hold the run: Failures of Within have one permanent code. Zero: never.
type FailFast struct{ Failures, Within int }

// DefaultFailFast is the rule of plans that set none. It never holds a run with fewer items than Failures.
func DefaultFailFast() FailFast { return FailFast{Failures: 200, Within: 400} }

// maxFailFast bounds the outcomes that a fail-fast limit counts: until then recorders are serialized.
const maxFailFast = 10_000

// FailFastOff is the text of the zero rule.
const FailFastOff = "off"

// ErrFailFast says which fail-fast limits are valid.
var ErrFailFast = fmt.Errorf("want failures N of the first M outcomes, like 200/400, at most %d; or %s", maxFailFast,
	FailFastOff)

// ParseFailFast parses a rule: "200/400", or "off". Empty means [DefaultFailFast].
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

// Trips reports whether the rule holds the run, given the failures of one code among the first outcomes. Beyond Within
// outcomes, recorded together, the ratio decides.
func (g FailFast) Trips(failures, outcomes int) bool {
	return g.Failures > 0 && failures >= g.Failures && failures*g.Within >= g.Failures*outcomes
}

// String returns the canonical form.
func (g FailFast) String() string {
	if g == (FailFast{}) {
		return FailFastOff
	}
	return fmt.Sprintf("%d/%d", g.Failures, g.Within)
}

// CanonicalFailFast parses a rule and returns its canonical form.
func CanonicalFailFast(text string) (string, error) {
	if text == "" {
		return "", ErrFailFast
	}
	rule, err := ParseFailFast(text)
	return rule.String(), err
}
