package serve

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
)

const (
	// FirstRetry is the delay after the first attempt at a single request; it doubles.
	FirstRetry = time.Second
	// LongestRetry caps that delay.
	LongestRetry = 30 * time.Second
	// buryTimeout is how long to retry a dead letter before its request is returned for redelivery.
	buryTimeout = 5 * time.Second
)

// retryDelay returns the delay after an attempt, with jitter to spread out requests that failed together.
func retryDelay(tries int) time.Duration {
	d := backoff.Nth(FirstRetry, LongestRetry, tries)
	return min(time.Duration(float64(d)*(0.75+rand.Float64()/2)), LongestRetry)
}

// single reports whether a caller waits for the request and it survives this attempt.
func (j *Job) single() bool { return j.Request.Mode == wire.ModeSingle && j.Origin.Persisted() }

// Lane returns Calls if a caller waits for the request: single, a stage of its flow, or direct and not a node's.
func (j *Job) Lane() Lane {
	asker := j.Request.ReplyTo
	if j.Request.Mode == wire.ModeSingle || asker.Call != "" && !j.Origin.Persisted() && !wire.IsNode(asker.Asker) {
		return Calls
	}
	return Chunks
}

type verdict struct {
	failure *wire.SlotError // applies to unanswered items, if any
	passing *wire.SlotError // retryable error; nil if a retry would not help
	fault   *wire.SlotError // error that the handler did not choose, if any
}

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

// conclude ends an attempt at a single request: retries it later, or answers it, and saves a dead letter if the
// handler did not choose the error. It reports whether the request was answered.
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
		j.Origin.Nak(NakDelay)
		return false
	}
	if delay := retryDelay(j.Origin.Delivered()); v.passing != nil && !j.Answers.Unfinished && j.mayComeBack(delay) {
		j.Answers.Settle(0, true)
		j.Log.Info("a single request is retried later", zap.Duration("after", delay), zap.String("code", v.passing.Code))
		j.Origin.Nak(delay)
		return false
	}
	j.Answers.Settle(0, false)
	j.fault = v.fault
	return e.settle(j, v.failure, nil)
}

// mayComeBack reports whether deliveries are left and the request will not expire before the delay ends.
func (j *Job) mayComeBack(after time.Duration) bool {
	if j.spent || j.Origin.Delivered() >= j.Request.Deliveries {
		return false
	}
	expires := j.Origin.Expires()
	return expires.IsZero() || time.Now().Add(after).Before(expires)
}

// bury publishes a dead letter. It returns true once JetStream has acknowledged it; otherwise the request is returned
// for redelivery.
func (e *Server) bury(
	ctx context.Context, from origin, h nats.Header, body []byte, fault *wire.SlotError, log *zap.Logger,
) bool {
	letter := wire.NewDeadLetter(e.Name, h, body, wire.FailureDetails{Cause: fault, Deliveries: from.Delivered(),
		Service: e.Host.Identity,
		At:      time.Now(), ID: from.LetterID()}, int(e.Host.NC.MaxPayload()))
	log = log.With(zap.String("cause", fault.Code), zap.Int("deliveries", from.Delivered()))
	ctx, cancel := context.WithTimeout(ctx, buryTimeout)
	defer cancel()
	if err := e.Host.Outbox.Publish(ctx, letter); err != nil {
		log.Error("a dead letter could not be sent; the request is handed back", zap.Error(err))
		from.Nak(NakDelay)
		return false
	}
	e.Stats.dead.Add(1)
	log.Warn("a request is dead; see tranche dlq")
	return true
}

const (
	// MaxBegun is how often a suspect may start alone without finishing.
	MaxBegun = 2
	// markTimeout bounds each read or write of a mark.
	markTimeout = time.Second
	// begunTTL is the lifetime of a mark, endedTTL that of a cleared one.
	begunTTL = "1h"
	endedTTL = "1s"
)

// soloAttempts counts how often a suspect started alone without finishing. Deliveries also count requests returned
// before they started. The mark is a message in StreamFlow; if it cannot be accessed, the count of deliveries is
// used.
type soloAttempts struct {
	out     *Outbox
	subject string
	log     *zap.Logger
}

func (m soloAttempts) read(ctx context.Context) int {
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	var msg *nats.Msg
	api := "$JS.API.DIRECT.GET." + wire.StreamFlow + "." + m.subject
	err := stream.During(ctx, m.out.NC, func(ctx context.Context) (err error) {
		msg, err = m.out.NC.RequestWithContext(ctx, api, nil)
		return err
	}, api)
	if err != nil {
		m.log.Debug("the mark of a suspect cannot be read; its deliveries are counted anyway", zap.Error(err))
		return 0
	}
	n, err := strconv.Atoi(string(msg.Data))
	if err != nil || msg.Header.Get("Status") != "" { // no message
		return 0
	}
	return max(n, 0)
}

// write stores the number of unfinished starts; 0 clears it.
func (m soloAttempts) write(ctx context.Context, n int) {
	ctx, cancel := context.WithTimeout(ctx, markTimeout)
	defer cancel()
	ttl := begunTTL
	if n == 0 {
		ttl = endedTTL
	}
	msg := &nats.Msg{Subject: m.subject, Header: nats.Header{wire.HeaderTTL: {ttl}},
		Data: strconv.AppendInt(nil, int64(n), 10)}
	if err := m.out.Try(ctx, msg); err != nil {
		m.log.Debug("a suspect cannot be marked; its deliveries are counted anyway", zap.Error(err))
	}
}

// origin is the source of a request, which receives its outcome.
type origin interface {
	// Acknowledge removes the answered request.
	Acknowledge()
	// Nak requests redelivery after a delay. It returns false if there is no redelivery; then the request must be
	// answered.
	Nak(after time.Duration) bool
	// Terminate removes a useless request.
	Terminate(reason error)
	// Delivered returns the number of deliveries so far.
	Delivered() int
	// Expires returns when the answer is no longer wanted, or zero if unknown.
	Expires() time.Time
	// LetterID returns the Nats-Msg-Id of the dead letter of a request that has none.
	LetterID() string
	// Persisted reports whether the request outlives its service.
	Persisted() bool
}

// SuspectFrom is the delivery from which a request is a suspect: it may have killed the processes that had it.
const SuspectFrom = 3

// Isolate waits until the job may run: see Suspects. It requires a slot. end must be called after the handler
// returns. end is nil, and the job must not run, if stopping was closed first (begun is false), or if a suspect has
// started alone MaxBegun times without finishing (failure is set).
func (j *Job) Isolate(ctx context.Context, stopping <-chan struct{}) (end func(), failure *wire.SlotError, begun bool) {
	if j.Host == nil { // without a host
		return func() {}, nil, true
	}
	// It is no suspect, nor part of one that failed as such.
	if j.Origin.Delivered() < SuspectFrom && j.Request.Deliveries >= wire.DefaultDeliveries {
		stay, ok := j.Host.Suspects.Enter(j.Request.Root, false, stopping)
		if !ok {
			return nil, nil, false
		}
		if stay.Late {
			j.Log.Warn("a suspect item is slow; handling others concurrently")
		}
		return stay.End, nil, true
	}
	mark := soloAttempts{j.Host.Outbox, wire.FlowPrefix + j.Endpoint + "." + j.Request.Slice.String() + ".begun", j.Log}
	times := mark.read(ctx)
	if times >= MaxBegun {
		j.Log.Warn("a request was begun alone twice and never finished; it goes back as failed")
		j.spent = true
		return nil, wire.NewSlotError(wire.CodeDeliveries, "the chunk was begun alone twice, and its service died",
			true), true
	}
	stay, ok := j.Host.Suspects.Enter(j.Request.Root, true, stopping)
	if !ok {
		return nil, nil, false
	}
	j.Log.Info("a suspect is handled", zap.Int("delivered", j.Origin.Delivered()), zap.Bool("alone", stay.Alone))
	if stay.Alone { // otherwise the culprit would be unknown
		times++
		mark.write(ctx, times)
	}
	return func() {
		stay.End()
		if times > 0 {
			mark.write(context.WithoutCancel(ctx), 0)
		}
	}, nil, true
}
