package serve

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
)

const (
	// FirstRetry is how long a single request rests after its first try, LongestRetry how long after any.
	FirstRetry = time.Second
	// LongestRetry is the longest of them.
	LongestRetry = 30 * time.Second
	// buryTimeout is how long a letter is tried before its request is handed back.
	buryTimeout = 5 * time.Second
)

// retryDelay is how long a request rests that has been tried so often: twice as long each time, more or less, so that
// those that failed together do not come back together.
func retryDelay(tries int) time.Duration {
	d := backoff.Nth(FirstRetry, LongestRetry, tries)
	return min(time.Duration(float64(d)*(0.75+rand.Float64()/2)), LongestRetry)
}

// single reports whether the request is one for which someone waits and which outlives this try.
func (j *Job) single() bool { return j.Request.Mode == wire.ModeSingle && j.Origin.Persisted() }

// Lane says for whom the job is. Someone waits for a single request, for the stages of a flow that one has begun, and
// for what is asked over core NATS, unless a node asks it there, for a run.
func (j *Job) Lane() Lane {
	asker := j.Request.ReplyTo
	if j.Request.Mode == wire.ModeSingle || asker.Call != "" && !j.Origin.Persisted() && !wire.IsNode(asker.Asker) {
		return Calls
	}
	return Chunks
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

// conclude ends a try at a single request: it is retried later, or answered, and buried when the handler did not
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

// mayComeBack reports whether another try may follow after a while: deliveries are left, and someone still waits then.
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
	// MaxBegun is how often a suspect may be begun alone and never finished.
	MaxBegun = 2
	// markTimeout bounds each look at a mark, and each change of one.
	markTimeout = time.Second
	// begunTTL is how long a mark is kept, endedTTL what has taken its place.
	begunTTL = "1h"
	endedTTL = "1s"
)

// soloAttempts notes how often a suspect was begun alone without being finished. Deliveries do not tell: a request that
// was handed back has been delivered, too. The mark is a message of StreamFlow; where it cannot be read or written, for
// want of a permission or the stream, deliveries have to do.
type soloAttempts struct {
	out     *Outbox
	subject string
	log     *zap.Logger
}

func newSoloAttempts(out *Outbox, endpoint string, slice uuid.UUID, log *zap.Logger) soloAttempts {
	return soloAttempts{out, wire.FlowPrefix + endpoint + "." + slice.String() + ".begun", log}
}

// read returns how often the request was begun and not finished.
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
	if err != nil || msg.Header.Get("Status") != "" { // there is none
		return 0
	}
	return max(n, 0)
}

// write notes how often the request was begun; 0 when it was finished, whatever came of it.
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

// origin is where a request came from, and where word goes of what became of it.
type origin interface {
	// Acknowledge lets the request go: it has been answered.
	Acknowledge()
	// Nak has the request delivered again after a while. It reports false when whoever asked does not send it again:
	// then it must be answered.
	Nak(after time.Duration) bool
	// Terminate lets the request go because it is of no use to anybody.
	Terminate(reason error)
	// Delivered returns how often the request has been delivered, this time included.
	Delivered() int
	// Expires is when no one will want the answer any more; zero when that is not known.
	Expires() time.Time
	// LetterID is the Nats-Msg-Id of the letter of a request that has none of its own.
	LetterID() string
	// Persisted reports whether the request outlives its service.
	Persisted() bool
}

// SuspectFrom is at which delivery a request is held to be one that may have killed those who had it before.
const SuspectFrom = 3

// suspicious reports whether a request may have killed those who had it before: it comes for the third time, or is a
// piece of one that was given up as such.
func (j *Job) suspicious() bool {
	return j.Origin.Delivered() >= SuspectFrom || j.Request.Deliveries < wire.DefaultDeliveries
}

// Isolate waits until the job may be handled: see suspects. It is called with a slot taken. Its end must be called when
// the handler has returned. There is none, and the job may not be handled, when stopping was closed before (begun is
// false then), and when a suspect was begun alone often enough and never finished: then the failure says so.
func (j *Job) Isolate(ctx context.Context, stopping <-chan struct{}) (end func(), failure *wire.SlotError, begun bool) {
	if j.Host == nil { // it is no one's
		return func() {}, nil, true
	}
	if !j.suspicious() {
		stay, ok := j.Host.Suspects.Enter(j.Request.Root, false, stopping)
		if !ok {
			return nil, nil, false
		}
		if stay.Late {
			j.Log.Warn("a suspect item is slow; handling others concurrently")
		}
		return stay.End, nil, true
	}
	mark := newSoloAttempts(j.Host.Outbox, j.Endpoint, j.Request.Slice, j.Log)
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
	if stay.Alone { // otherwise no one could say who it was
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
