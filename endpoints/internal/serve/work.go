package serve

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/pull"
)

// Work is a decoded chunk.
type Work interface {
	// Run takes slots, calls the handler and returns the failure that applies to unanswered items, if any. begun is
	// false if stopping was closed before the handler was called.
	Run(ctx context.Context, slots *Slots, stopping <-chan struct{}) (failure *wire.SlotError, begun bool)
}

// Around calls the handler of a chunk or stage inside the wrappers.
type Around func(ctx context.Context, j *Job, stage int, inner Wrapped) error

// Wrapped is a chunk or stage that wrappers can run around.
type Wrapped interface {
	// Handle calls the handler for the unanswered items, and converts a panic or timeout to an error.
	Handle(ctx context.Context) error
	// Items returns the items for the handler.
	Items() WorkItems
}

// WorkItems is the untyped items of a chunk.
type WorkItems interface {
	// Unanswered returns the unanswered items in request order.
	Unanswered() []Item
	// ClaimFor marks an item as answered by a wrapper; false if unknown or answered. Answers.Mu must be held.
	ClaimFor(ordinal int) bool
	// LeaveOut removes answered items from those for the handler.
	LeaveOut()
}

// Onward is implemented by items that can move to a later stage.
type Onward interface {
	// GoingOn returns the ordinals of the items sent to a later stage.
	GoingOn() []int
}

// RunWrapped calls the handler of a chunk or stage inside its endpoint's wrappers. It returns the failure that
// applies to unanswered items, if any. Held answers are sent or dropped by then.
func RunWrapped(ctx context.Context, j *Job, stage int, inner Wrapped) *wire.SlotError {
	var err error
	if j.Around == nil {
		err = inner.Handle(ctx)
	} else {
		err = j.Around(ctx, j, stage, inner)
	}
	if err == nil {
		return nil
	}
	j.undecided = Undecided(err)
	// A whole chunk mostly fails for temporary reasons, such as a database outage. A permanent error would split it down
	// to single items immediately: twice as many calls as items.
	return wire.AsSlotError(ctx, err, true)
}

// Item is an item as wrappers and handlers see it.
type Item struct {
	Job     *Job
	Ordinal int
	Key     string
	Parts   wire.Parts
}

// InSlot runs f in one slot, isolated if needed. begun is false if stopping was closed first.
func (j *Job) InSlot(
	ctx context.Context, slots *Slots, stopping <-chan struct{}, f func() *wire.SlotError,
) (failure *wire.SlotError, begun bool) {
	if !slots.Take(j.Lane(), stopping) {
		return nil, false
	}
	since := time.Now()
	defer func() { slots.Give(j.Lane(), since) }()
	end, failure, begun := j.Isolate(ctx, stopping)
	if end == nil {
		return failure, begun
	}
	defer end()
	j.Answers.Start()
	return f(), true
}

// Guard calls a chunk's handler and converts a panic, or the end of ctx, to an error.
func (j *Job) Guard(ctx context.Context, handler func(context.Context) error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			failure, stack := wire.Panicked(value, true)
			err = OwnError{Err: failure}
			j.Log.Error("the handler panicked", zap.Any("panic", value), zap.String("stack", stack))
		}
	}()
	if err := handler(ctx); err != nil && !wire.IsCut(ctx, err) {
		return err
	}
	if ctx.Err() != nil {
		return OwnError{Err: wire.CutShort(ctx)}
	}
	return nil
}

const (
	// NakDelay is the redelivery delay of a request that could not be answered.
	NakDelay = 2 * time.Second
	// foreignDelay is that of a request in an unsupported protocol version.
	foreignDelay = 10 * time.Second
)

// Job is one request, from delivery to acknowledgement.
type Job struct {
	Host     *Host
	Origin   origin
	Endpoint string
	Header   nats.Header // as received; do not modify
	body     []byte      // as received; do not modify
	Request  *wire.Request
	Around   Around
	Answers  Writer
	Timeout  time.Duration
	Log      *zap.Logger
	Started  time.Time
	// undecided reports that the handler did not choose the chunk's failure.
	undecided bool
	// spent forbids another attempt, even if deliveries are left.
	spent bool
	// fault is the error for which a single request becomes a dead letter, or nil.
	fault *wire.SlotError
}

// dealer returns a function that handles one held request to its end.
func (e *Server) dealer(from *Puller,
) func(Scope, RequestID, jetstream.Msg) (items int, took time.Duration) {
	return func(scope Scope, id RequestID, msg jetstream.Msg) (items int, took time.Duration) {
		meta, err := msg.Metadata()
		if err != nil {
			return 0, 0 // hold rejects these
		}
		return e.accept(scope, Queued{Puller: from, ID: id, Times: meta.NumDelivered}, msg.Headers(), msg.Data())
	}
}

// accept handles a request of any origin to its end.
func (e *Server) accept(scope Scope, from origin, h nats.Header, body []byte) (items int, took time.Duration) {
	e.Stats.Came(uint64(from.Delivered()))
	request, err := wire.ParseRequest(h, body, e.Host.Limits)
	if request != nil && !request.ReplyTo.IsZero() && request.ReplyTo.Callee != e.Name {
		err = wire.Malformed(wire.ReasonHeader, "%s names endpoint %s; this is %s", wire.HeaderReplyTo,
			request.ReplyTo.Callee, e.Name)
		request = nil // answering would impersonate another endpoint
	}
	if request == nil {
		e.refuse(scope, from, h, body, err)
		return 0, 0
	}
	j := e.NewJob(scope, from, h, body, request)
	switch {
	case err != nil:
		j.Log.Error("a request cannot be read", zap.Error(err))
		e.giveUp(j, wire.Refusal(err), err)
	case from.Delivered() > request.Deliveries:
		j.Log.Warn("a request was delivered many times and never answered; it goes back as failed")
		e.giveUp(j, wire.NewSlotError(wire.CodeDeliveries, "the chunk was delivered many times and never answered",
			true), nil)
	default:
		if e.serve(scope, j) {
			return len(request.Items), time.Since(j.Started)
		}
	}
	return 0, 0
}

// refuse drops a request with unreadable headers: there is no requester to answer.
func (e *Server) refuse(scope Scope, from origin, h nats.Header, body []byte, err error) {
	log := e.Log.With(OfHeader(h)...)
	var bad *wire.MalformedError
	foreign := errors.As(err, &bad) && bad.Reason == wire.ReasonVersion && h.Get(wire.HeaderVersion) != ""
	if foreign && from.Delivered() < wire.MaxDeliver && from.Nak(foreignDelay) {
		log.Warn("a request speaks another version of the protocol; it is left to other instances", zap.Error(err))
		return
	}
	log.Error("a request cannot be read, and does not say whom to tell", zap.Error(err))
	// In any mode, or it would vanish without a trace.
	if !from.Persisted() || e.bury(scope.Sending, from, h, body, wire.NewSlotError(wire.CodeBadRequest, err.Error(),
		false), log) {
		from.Terminate(err)
	}
}

// giveUp answers a request that no handler has seen, and removes it.
func (e *Server) giveUp(j *Job, failure *wire.SlotError, spoiled error) {
	j.fault = failure
	e.settle(j, failure, spoiled)
}

// NewJob returns the job of a parsed request.
func (e *Server) NewJob(scope Scope, from origin, h nats.Header, body []byte, request *wire.Request) *Job {
	j := &Job{Host: e.Host, Origin: from, Endpoint: e.Name, Header: h, body: body, Request: request,
		Around: e.Around, Timeout: e.Settings.Timeout, Started: time.Now(), Log: e.Log.With(Fields(request.Meta)...)}
	e.Prepare(scope.Sending, &j.Answers, request.Meta, wire.TraceOfHeader(h))
	return j
}

// serve runs a job's handler and answers the request. It returns false if the request was not answered here.
func (e *Server) serve(scope Scope, j *Job) bool {
	ctx, cancel := context.WithCancelCause(scope.Working)
	defer cancel(nil)
	j.Answers.GiveUp = cancel
	if j.single() {
		j.Answers.Hold() // another attempt may change the answers
	}
	work := e.Begin(j)
	failure, begun := work.Run(&JobContext{ctx, j}, e.Slots, scope.Stopping)
	total := j.Answers.Close()
	switch {
	case !begun, total == 0 && failure != nil && failure.Code == wire.CodeShutdown:
		// Nothing was done: another instance may take it after the end of the open pull here.
		if j.Origin.Nak(2 * pull.Settling) {
			return false
		}
		failure = wire.NewSlotError(wire.CodeShutdown, wire.ErrShutdown.Error(), true)
	case total == len(j.Request.Items):
		failure = nil // all items are answered
	}
	if j.single() {
		if !e.conclude(j, failure) {
			return false
		}
	} else {
		e.settle(j, failure, nil)
	}
	answered := len(j.Request.Items)
	if j.Answers.Unfinished { // the first stage of a flow
		answered = total
	}
	e.Stats.Add(len(j.Request.Items), answered, j.Answers.Errors, time.Since(j.Started))
	return true
}

// settle sends the end of the reply, saves a dead letter if needed, and acknowledges the request, or terminates it if
// spoiled is set. It returns false if the request was returned for redelivery instead.
func (e *Server) settle(j *Job, failure *wire.SlotError, spoiled error) bool {
	e.Stats.Failed(failure)
	if err := j.Answers.Send(failure); err != nil {
		j.Log.Error("the reply could not be sent; the request is handed back", zap.Error(err))
		j.Origin.Nak(NakDelay)
		return false
	}
	// The caller gets the answer first, even if the stream of dead letters is full.
	if j.fault != nil && j.single() && !e.bury(j.Answers.Ctx, j.Origin, j.Header, j.body, j.fault, j.Log) {
		return false
	}
	// Acknowledge only now: JetStream has stored the whole reply and the dead letter. If it came earlier, a crash would
	// lose both and the request.
	if spoiled != nil {
		j.Origin.Terminate(spoiled)
	} else {
		j.Origin.Acknowledge()
	}
	return true
}

// JobContext is the context of a handler; its job is used for the handler's own calls.
type JobContext struct {
	context.Context //nolint:containedctx // it is a context
	Job             *Job
}

type jobKey struct{}

// Value returns the job for jobKey, and the parent's value for other keys.
func (c *JobContext) Value(key any) any {
	if key == (jobKey{}) {
		return c.Job
	}
	return c.Context.Value(key)
}

// JobOf returns the job of a handler's context or one derived from it, or nil.
func JobOf(ctx context.Context) *Job {
	j, _ := ctx.Value(jobKey{}).(*Job)
	return j
}
