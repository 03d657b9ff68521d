package collector

import (
	"slices"
	"time"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

const (
	// patientFlushes is how many flushes of a collector in a row must have come to nothing before a failure is held
	// against a single operation although nothing shows that its endpoint works. One that may be to blame goes alone from
	// then on: it takes no one with it, and the others show whether the endpoint works.
	patientFlushes = 5
	// longestRest is the longest that a collector, or a key, rests because no one answers.
	longestRest = 30 * time.Second
	// firstRest is the rest that doubles with each flush that comes to nothing.
	firstRest = time.Second
)

// Codes of operations and flushes.
const (
	CodeUnanswered  = "unanswered"   // the reply was complete, and had no place for the operation
	CodeNoListeners = "no_listeners" // no service listens for the endpoint
)

// outageCodes are those of flushes that reached no one, or no one who could begin: no operation is to blame.
func outageCodes() []string {
	return []string{CodeNoListeners, "unsent", "permission", "shutdown", "not_started"}
}

// FlushSlot is what became of one operation of a flush. The zero FlushSlot is one for which nothing came.
type FlushSlot struct {
	Came bool
	Err  *workqueue.SlotError // nil when it succeeded
}

// FlushEnd is how a flush ended.
type FlushEnd struct {
	Claim *ClaimedFlushes // that it is of
	Flush KeyFlush
	Ops   []FlushOp
	Slots []FlushSlot // of each of Ops
	// Failure is what became of the operations without a slot; nil when the reply was complete.
	Failure *workqueue.SlotError
	Replied bool // the service has said something
	Refused bool // Failure is what it has said of the flush
}

// Operations is how many operations the flush has, with those that were folded into others.
func (e *FlushEnd) Operations() (n int) {
	for i := range e.Ops {
		n += 1 + len(e.Ops[i].Folded)
	}
	return n
}

// opFailure is what becomes of an operation that failed.
type opFailure struct {
	seq      int64
	attempts int
	parked   bool
	alone    bool // its flush failed as a whole
	pause    time.Duration
	code     string
	message  string
	folded   []int64 // what was folded into it fails with it
	id       string
}

// health is what a flush says about the endpoint.
type health int

const (
	healthUnknown health = iota
	healthGood           // it handled operations
	healthBad            // the flush came to nothing
	healthAway           // certainly, it reached no one
)

// flushVerdict is what becomes of a flush.
type flushVerdict struct {
	done      []int64
	failed    []opFailure
	hold      time.Duration // the key rests
	sizeLimit int           // of the next flush of the key; 0: none
	failures  int           // of the key in a row
	health    health
	why       workqueue.SlotError // of bad health
	dealt     bool                // the service carried something out, or refused it permanently
	again     bool                // it asked for something to be retried
	busy      bool                // it had too much to do
	told      bool                // it has said itself that the flush failed as a whole
	unasked   bool                // there was nothing to ask for, or it could not be read
	outage    bool                // it ended as flushes do in an outage, which counts for the endpoint's breaker
}

// flushJudge decides what becomes of flushes of a claim.
type flushJudge struct {
	plane.Policy
	maxSize int
	health  int // flushes of the collector in a row that came to nothing, when these were claimed
	probe   bool
}

func newFlushJudge(c *ClaimedFlushes) flushJudge {
	spec := &c.Spec
	return flushJudge{maxSize: spec.MaxSize, health: c.Health, probe: c.Probe, Policy: plane.Policy{
		MaxAttempts: spec.MaxAttempts, Backoff: time.Duration(spec.Backoff), MaxBackoff: time.Duration(spec.MaxBackoff),
		RetryCodes: spec.RetryCodes, NoRetryCodes: spec.NoRetryCodes}}
}

// judge decides by operation where the service answered for it, and for all of the rest together where it did not:
//
//   - a reply that is complete and leaves an operation out has failed it;
//   - an outage, or a service that has too much to do, is held against no one: the key and the collector rest;
//   - a flush that failed as a whole is retried with half as many, until one is alone. That one is to blame when
//     the service itself has said so; after a silence only unless nothing has worked lately. It waits for its next try
//     on its own account, so that others of its key go on.
//
// Of which no one was asked says nothing: the key is as it was.
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

// slots judges what the service answered for, and returns the rest.
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

// grown is the limit of the next flush after one that was answered: twice as many, until it is as many as ever. A probe
// is of one operation, which says nothing about that.
func (j *flushJudge) grown(f *KeyFlush) int {
	if j.probe {
		return f.shrunk
	}
	if f.shrunk == 0 || f.Limit*2 >= j.maxSize {
		return 0
	}
	return f.Limit * 2
}

// fail is what becomes of an operation that was failed by itself.
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
	return f
}

// whole is what becomes of the operations that a failure of the flush speaks for. A failure that the service has told
// of itself shows that it is there, so it is no sign of an outage: a key asks for the same operations again and again,
// and five keys with a bad one each would close the endpoint to everybody. Chunks of runs that fail so do count: they
// are of different items, and are judged with what came of their pieces.
func (j *flushJudge) whole(end *FlushEnd, left []*FlushOp, v *flushVerdict) {
	e := *end.Failure
	v.why, v.told = e, end.Refused
	next := end.Flush.failures + 1
	switch {
	case slices.Contains(outageCodes(), e.Code):
		v.health, v.hold, v.sizeLimit = j.worse(v, healthAway), j.rest(next), end.Flush.shrunk
		v.outage = e.Code == CodeNoListeners // the others are about one instance or node
	case workqueue.Throttled(e.Code) && j.Retries(e):
		v.health, v.hold, v.sizeLimit = j.worse(v, healthAway), j.Throttled(next), end.Flush.shrunk
		v.busy = end.Refused
	case len(left) == 1 && !j.Retries(e): // alone, and permanently
		v.failed = append(v.failed, j.fail(left[0], e, next))
		v.dealt = v.dealt || end.Refused
	case j.probe && j.health < patientFlushes:
		v.health, v.hold, v.outage = j.worse(v, healthBad), j.rest(next), !end.Refused
	case len(left) > 1: // half as many are another flush, and need not wait for long
		v.sizeLimit, v.outage = max(1, len(left)/2), !end.Refused
		if j.Retries(e) {
			v.health, v.hold = j.worse(v, healthBad), j.Pause(1)
		}
	default:
		j.lone(end, left[0], v)
	}
}

// lone is what becomes of the only operation of a flush that failed as a whole. A service that has said so has shown
// that it is there; when it has not, nothing may be.
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
		v.sizeLimit = 1 // another may be to blame as well
	}
	v.health, v.outage = j.worse(v, healthBad), !end.Refused
}

// rest is for how long a key waits when no one answers.
func (j *flushJudge) rest(n int) time.Duration { return min(j.Pause(n), longestRest) }

// worse says how bad a flush is whose rest failed: not at all when part of it came through.
func (*flushJudge) worse(v *flushVerdict, bad health) health {
	if len(v.done) > 0 {
		return v.health
	}
	return bad
}
