package collector

import (
	"slices"
	"time"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

const (
	// patientFlushes is the number of consecutive failed flushes of a collector after which a failure counts against a
	// single operation even without a sign that the endpoint works. The suspect is sent alone, so the rest show whether
	// the endpoint works.
	patientFlushes = 5
	// longestRest is the longest rest of a collector or key because nothing answers.
	longestRest = 30 * time.Second
	// firstRest doubles with each failed flush.
	firstRest = time.Second
)

// Codes of operations and flushes.
const (
	CodeUnanswered  = "unanswered"   // a complete reply had no slot for the operation
	CodeNoListeners = "no_listeners" // no service listens on the endpoint
)

// FlushSlot is the outcome of one operation of a flush. The zero value means that none came.
type FlushSlot struct {
	Came bool
	Err  *workqueue.SlotError // nil: success
}

// FlushEnd is how a flush ended.
type FlushEnd struct {
	Claim *ClaimedFlushes
	Flush KeyFlush
	Ops   []FlushOp
	Slots []FlushSlot // one for each of Ops
	// Failure is the error of operations without a slot; nil if the reply was complete.
	Failure *workqueue.SlotError
	Replied bool // the service answered
	Refused bool // Failure is the service's own
}

// Operations returns the number of operations, including folded ones.
func (e *FlushEnd) Operations() (n int) {
	for i := range e.Ops {
		n += 1 + len(e.Ops[i].Folded)
	}
	return n
}

type opFailure struct {
	seq      int64
	attempts int
	parked   bool
	refused  bool // parked by a permanent error of the service: a requeue is new work to it
	alone    bool // its flush failed entirely
	pause    time.Duration
	code     string
	message  string
	folded   []int64 // folded into it, so they fail with it
	id       string
}

type health int

const (
	healthUnknown health = iota
	healthGood           // it handled operations
	healthBad            // the flush failed
	healthAway           // it certainly reached no service
)

type flushVerdict struct {
	done      []int64
	failed    []opFailure
	hold      time.Duration // how long the key rests
	sizeLimit int           // of the key's next flush; 0: none
	failures  int           // consecutive, of the key
	health    health
	why       workqueue.SlotError // the reason for bad health
	dealt     bool                // the service executed or permanently refused an operation
	again     bool                // the service requested a retry
	busy      bool                // the service was overloaded
	told      bool                // the service itself failed the whole flush
	unasked   bool                // nothing was sent, or the operations could not be read
	outage    bool                // it ended like flushes in an outage, which counts for the endpoint's breaker
}

type flushJudge struct {
	plane.Policy
	maxSize int
	health  int // consecutive failed flushes of the collector at the claim
	probe   bool
}

func newFlushJudge(c *ClaimedFlushes) flushJudge {
	spec := &c.Spec
	return flushJudge{maxSize: spec.MaxSize, health: c.Health, probe: c.Probe, Policy: plane.Policy{
		MaxAttempts: spec.MaxAttempts, Backoff: time.Duration(spec.Backoff), MaxBackoff: time.Duration(spec.MaxBackoff),
		RetryCodes: spec.RetryCodes, NoRetryCodes: spec.NoRetryCodes}}
}

// judge decides by operation where the service answered, and for all remaining ones together where it did not:
//
//   - A complete reply that leaves an operation out has failed it.
//   - An outage or an overloaded service counts against no operation: the key and the collector rest.
//   - A flush that failed entirely is retried with half as many, until one is alone. That one is to blame if the
//     service itself said so; after a silence, only if something has worked lately or patientFlushes have failed. It
//     waits for its next attempt alone, so that others of its key continue.
//
// If nothing was sent, the key stays unchanged.
func (j *flushJudge) judge(end *FlushEnd) (v flushVerdict) {
	if len(end.Ops) == 0 {
		return flushVerdict{unasked: true, sizeLimit: end.Flush.shrunk, failures: end.Flush.failures}
	}
	left := j.slots(end, &v)
	if len(v.done) > 0 {
		v.health = healthGood
	}
	v.sizeLimit = j.grown(&end.Flush)
	switch {
	case len(left) == 0:
	case end.Failure == nil:
		v.again = true
		for _, op := range left {
			v.failed = append(v.failed, j.fail(op, workqueue.SlotError{Code: CodeUnanswered,
				Message: "the reply was complete and had no slot for the operation", Retry: true}, end.Flush.failures))
		}
	default:
		j.whole(end, left, &v)
	}
	if len(v.done) == 0 {
		v.failures = end.Flush.failures + 1
	}
	v.dealt = v.dealt && end.Replied
	v.outage = v.outage && !v.dealt
	return v
}

// slots judges the answered operations and returns the rest.
func (j *flushJudge) slots(end *FlushEnd, v *flushVerdict) (left []*FlushOp) {
	for i := range end.Ops {
		op, slot := &end.Ops[i], end.Slots[i]
		switch {
		case slot.Came && slot.Err == nil:
			v.done, v.dealt = append(append(v.done, op.Seq), op.Folded...), true
		case slot.Came:
			v.failed = append(v.failed, j.fail(op, *slot.Err, end.Flush.failures))
			v.dealt = v.dealt || !j.Retries(*slot.Err)
			v.again = v.again || j.Retries(*slot.Err) && !workqueue.Throttled(slot.Err.Code)
		default:
			left = append(left, op)
		}
	}
	return left
}

// grown is the limit after an answered flush: doubled, up to the collector's. A probe says nothing about size.
func (j *flushJudge) grown(f *KeyFlush) int {
	if j.probe {
		return f.shrunk
	}
	if f.shrunk == 0 || f.Limit*2 >= j.maxSize {
		return 0
	}
	return f.Limit * 2
}

func (j *flushJudge) fail(op *FlushOp, e workqueue.SlotError, before int) opFailure {
	f := opFailure{seq: op.Seq, id: op.ID, folded: op.Folded, attempts: op.Attempts + 1, code: pg.Plain(e.Code),
		message: pg.Plain(e.Message)}
	switch {
	case workqueue.Throttled(e.Code) && j.Retries(e):
		f.attempts = op.Attempts
		f.pause = j.Throttled(before + 1)
	case !j.Retries(e), f.attempts >= j.MaxAttempts:
		f.parked = true
	default:
		f.pause = j.Pause(f.attempts)
	}
	f.refused = f.parked && !e.Retry
	return f
}

// whole decides for the operations that fail with the flush. A failure reported by the service shows that the service
// is up, so it is no sign of an outage: five keys with one bad operation each, always repeated, would open the
// breaker. Failed chunks of runs do count: their items differ, and their pieces are judged, too.
func (j *flushJudge) whole(end *FlushEnd, left []*FlushOp, v *flushVerdict) {
	e := *end.Failure
	v.why, v.told = e, end.Refused
	next := end.Flush.failures + 1
	switch {
	case slices.Contains([]string{CodeNoListeners, "unsent", "permission", "shutdown", "not_started"}, e.Code):
		v.health, v.hold, v.sizeLimit = j.worse(v, healthAway), j.rest(next), end.Flush.shrunk
		v.outage = e.Code == CodeNoListeners // the other codes concern one instance or node
	case workqueue.Throttled(e.Code) && j.Retries(e):
		v.health, v.hold, v.sizeLimit = j.worse(v, healthAway), j.Throttled(next), end.Flush.shrunk
		v.busy = end.Refused
	case len(left) == 1 && !j.Retries(e): // alone, and permanent
		v.failed = append(v.failed, j.fail(left[0], e, next))
		v.dealt = v.dealt || end.Refused
	case j.probe && j.health < patientFlushes:
		v.health, v.hold, v.outage = j.worse(v, healthBad), j.rest(next), !end.Refused
	case len(left) > 1: // half as many are another flush, and need not wait long
		v.sizeLimit, v.outage = max(1, len(left)/2), !end.Refused
		if j.Retries(e) {
			v.health, v.hold = j.worse(v, healthBad), j.Pause(1)
		}
	default:
		j.lone(end, left[0], v)
	}
}

// lone decides for the only operation of a failed flush. Unless the service reported it, the endpoint may be down.
func (j *flushJudge) lone(end *FlushEnd, op *FlushOp, v *flushVerdict) {
	next := end.Flush.failures + 1
	f := j.fail(op, *end.Failure, next)
	if !end.Refused && j.health > 0 && j.health < patientFlushes {
		f.attempts, f.parked = op.Attempts, false
		f.pause = j.Pause(next)
	}
	f.alone = true
	v.failed = append(v.failed, f)
	if !op.Alone {
		v.sizeLimit = 1 // another may be to blame, too
	}
	v.health, v.outage = j.worse(v, healthBad), !end.Refused
}

func (j *flushJudge) rest(n int) time.Duration { return min(j.Pause(n), longestRest) }

// worse is a partly failed flush's health: not bad if part of it succeeded.
func (*flushJudge) worse(v *flushVerdict, bad health) health {
	if len(v.done) > 0 {
		return v.health
	}
	return bad
}
