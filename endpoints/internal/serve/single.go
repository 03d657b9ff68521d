package serve

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/internal/admission"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
)

const (
	// FirstRetry is how long a single request rests after its first try, LongestRetry how long after any.
	FirstRetry = time.Second
	// LongestRetry is the longest of them.
	LongestRetry = 30 * time.Second
	// buryPatience is how long a letter is tried before its request is handed back.
	buryPatience = 5 * time.Second
)

// retryDelay is how long a request rests that has been tried so often: twice as long each time, more or less, so that
// those that failed together do not come back together.
func retryDelay(tries int) time.Duration {
	d := backoff.Nth(FirstRetry, LongestRetry, tries)
	return min(time.Duration(float64(d)*(0.75+rand.Float64()/2)), LongestRetry)
}

// single reports whether the request is one for which somebody waits and which outlives this try.
func (j *Job) single() bool { return j.Request.Mode == wire.ModeSingle && j.Origin.Persisted() }

// Lane says for whom the job is. Somebody waits for a single request, for the stages of a flow that one has begun, and
// for what is asked over core NATS, unless a node asks it there, for a run.
func (j *Job) Lane() admission.Lane {
	asker := j.Request.ReplyTo
	if j.Request.Mode == wire.ModeSingle || asker.Call != "" && !j.Origin.Persisted() && !wire.IsNode(asker.Asker) {
		return admission.Calls
	}
	return admission.Chunks
}

// verdict says what a try at a single request has come to.
type verdict struct {
	failure *wire.SlotError // what speaks for the items without an answer, if any
	passing *wire.SlotError // what may pass; nil when trying again would not help
	fault   *wire.SlotError // what the handler did not decide itself; nil when it has
}

// judge looks at what was answered, all of which is still held.
func (j *Job) judge(failure *wire.SlotError, undecided bool) (v verdict, err error) {
	slots, err := j.Answers.HeldSlots()
	if err != nil {
		return v, fmt.Errorf("read the held answers: %w", err)
	}
	for _, slot := range slots {
		v.add(slot.Err, j.Answers.IsFault(slot.Ordinal))
	}
	if len(slots) < len(j.Request.Items) && failure == nil && !j.Answers.Unfinished {
		failure, undecided = wire.NewSlotError(wire.CodeUnanswered, "the handler left the item out", true), true
	}
	v.add(failure, undecided || j.spent)
	v.failure = failure
	return v, nil
}

func (v *verdict) add(e *wire.SlotError, undecided bool) {
	if e == nil {
		return
	}
	if e.Retry && v.passing == nil {
		v.passing = e
	}
	if undecided && v.fault == nil {
		v.fault = e
	}
}

// conclude ends a try at a single request: it is tried again later, or answered, and buried when the handler did not
// decide. It reports whether the request was answered.
func (e *Server) conclude(j *Job, failure *wire.SlotError) bool {
	if over := j.Answers.UnlessOverflowed(nil); over != nil {
		j.Answers.Settle(0, true)
		failure = wire.AsSlotError(context.Background(), over, false)
		j.fault = failure
		return e.settle(j, failure, nil)
	}
	v, err := j.judge(failure, j.undecided)
	if err != nil {
		j.Log.Error("what was answered cannot be read; the request is handed back", zap.Error(err))
		j.Origin.HandBack(HandBackDelay)
		return false
	}
	if delay := retryDelay(j.Origin.Delivered()); v.passing != nil && !j.Answers.Unfinished && j.mayComeBack(delay) {
		j.Answers.Settle(0, true)
		j.Log.Info("a single request is tried again later", zap.Duration("after", delay), zap.String("code", v.passing.Code))
		j.Origin.HandBack(delay)
		return false
	}
	j.Answers.Settle(0, false)
	j.fault = v.fault
	return e.settle(j, v.failure, nil)
}

// mayComeBack reports whether another try may follow after a while: deliveries are left, and somebody still waits then.
func (j *Job) mayComeBack(after time.Duration) bool {
	if j.spent || j.Origin.Delivered() >= j.Request.Deliveries {
		return false
	}
	expires := j.Origin.Expires()
	return expires.IsZero() || time.Now().Add(after).Before(expires)
}

// bury publishes a dead letter. It reports true once JetStream has acknowledged it; otherwise the request has been
// handed back.
func (e *Server) bury(
	ctx context.Context, from origin, h nats.Header, body []byte, fault *wire.SlotError, log *zap.Logger,
) bool {
	letter := wire.NewDeadLetter(e.Name, h, body, wire.Obituary{Cause: fault, Deliveries: from.Delivered(),
		Service: e.Host.Identity,
		At:      time.Now(), ID: from.LetterID()}, int(e.Host.NC.MaxPayload()))
	log = log.With(zap.String("cause", fault.Code), zap.Int("deliveries", from.Delivered()))
	ctx, cancel := context.WithTimeout(ctx, buryPatience)
	defer cancel()
	if err := e.Host.Outbox.Publish(ctx, letter); err != nil {
		log.Error("a dead letter could not be sent; the request is handed back", zap.Error(err))
		from.HandBack(HandBackDelay)
		return false
	}
	e.Stats.dead.Add(1)
	log.Warn("a request is dead; see tranche dlq")
	return true
}
