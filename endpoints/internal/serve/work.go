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

// Work is a decoded chunk in the hands of its handler.
type Work interface {
	// Run takes what it needs of the slots, calls the handler and returns the failure that speaks for what is not
	// answered, if any. It returns false when stopping was closed before the handler was called at all.
	Run(ctx context.Context, slots *Slots, stopping <-chan struct{}) (failure *wire.SlotError, begun bool)
}

// Around calls the handler of a chunk, or of a stage, within whatever is called around handlers.
type Around func(ctx context.Context, j *Job, stage int, inner Wrapped) error

// Wrapped is what wrappers can be called around.
type Wrapped interface {
	// Handle calls the handler for the items that are not answered, and turns its panic and its end of time into an
	// error.
	Handle(ctx context.Context) error
	// Items returns what the handler will see.
	Items() WorkItems
}

// WorkItems is the items of a chunk, whatever their type.
type WorkItems interface {
	// Unanswered returns the items that no one has answered, in the order of the request.
	Unanswered() []Item
	// ClaimFor notes that an item will be answered by a wrapper, or reports false when it is not there or answered. It is
	// called with answers.mu held.
	ClaimFor(ordinal int) bool
	// LeaveOut drops the answered items from those that the handler will see.
	LeaveOut()
}

// Onward is implemented by items that may go on without an answer: those of a stage.
type Onward interface {
	// GoingOn returns the ordinals of the items that have been sent on to a later stage.
	GoingOn() []int
}

// RunWrapped calls the handler of a chunk, or of a stage, within the wrappers of its endpoint. It returns the failure
// that speaks for what is not answered, if any. Answers that wrappers held have been sent, or dropped, by then.
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
	// What fails a whole chunk is most often something that passes, such as a database that is down. An error that is not
	// retryable would be halved at once, and each half's halves: twice as many calls as there are items.
	return wire.AsSlotError(ctx, err, true)
}

// Item is one item of a request, as wrappers and handlers are told of it.
type Item struct {
	Request *wire.Request
	Ordinal int
	Key     string
	Parts   wire.Parts
}

// InSlot runs what takes one slot, alone when it must be. begun is false when stopping was closed before.
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

// Guard calls the handler of a whole chunk. A panic, or the end of ctx, is the error of the chunk.
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
	// NakDelay is how long a request rests that could not be answered.
	NakDelay = 2 * time.Second
	// foreignDelay is how long a request rests that speaks a version of the protocol that this side does not.
	foreignDelay = 10 * time.Second
)

// Job is one request from its delivery to its acknowledgement.
type Job struct {
	Host     *Host
	Origin   origin
	Endpoint string
	Header   nats.Header // as it came; not to be changed
	body     []byte      // also
	Request  *wire.Request
	Around   Around
	Answers  Writer
	Timeout  time.Duration
	Log      *zap.Logger
	Started  time.Time
	// undecided says that the failure of the chunk is not one that the handler chose.
	undecided bool
	// spent says that no further try may follow, whatever deliveries are left.
	spent bool
	// fault is what a single request dies of once it is answered; nil when it does not.
	fault *wire.SlotError
}

// dealer returns what takes one request, which a puller holds, all the way. It returns when the request has been dealt
// with.
func (e *Server) dealer(from *Puller,
) func(Scope, RequestID, jetstream.Msg) (items int, took time.Duration) {
	return func(scope Scope, id RequestID, msg jetstream.Msg) (items int, took time.Duration) {
		meta, err := msg.Metadata()
		if err != nil {
			return 0, 0 // hold would have refused it
		}
		return e.accept(scope, Queued{Puller: from, ID: id, Times: meta.NumDelivered}, msg.Headers(), msg.Data())
	}
}

// accept takes a request, wherever it came from, all the way.
func (e *Server) accept(scope Scope, from origin, h nats.Header, body []byte) (items int, took time.Duration) {
	e.Stats.Came(uint64(from.Delivered()))
	request, err := wire.ParseRequest(h, body, e.Host.Limits)
	if request != nil && !request.ReplyTo.IsZero() && request.ReplyTo.Callee != e.Name {
		err = wire.Malformed(wire.ReasonHeader, "%s names endpoint %s; this is %s", wire.HeaderReplyTo,
			request.ReplyTo.Callee, e.Name)
		request = nil // to answer there would be to speak for another endpoint
	}
	if request == nil {
		e.refuse(scope, from, h, body, err)
		return 0, 0
	}
	j := e.NewJob(scope, from, h, body, request)
	switch {
	case err != nil:
		e.refuseBody(j, err)
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

// refuse gets rid of a request whose headers cannot be read: there is no one to answer.
func (e *Server) refuse(scope Scope, from origin, h nats.Header, body []byte, err error) {
	log := e.Log.With(OfHeader(h)...)
	var bad *wire.MalformedError
	foreign := errors.As(err, &bad) && bad.Reason == wire.ReasonVersion && h.Get(wire.HeaderVersion) != ""
	if foreign && from.Delivered() < wire.MaxDeliver && from.Nak(foreignDelay) {
		log.Warn("a request speaks another version of the protocol; it is left to other instances", zap.Error(err))
		return
	}
	log.Error("a request cannot be read, and does not say whom to tell", zap.Error(err))
	// Whatever its mode: no one else would ever know of it.
	if !from.Persisted() || e.bury(scope.Sending, from, h, body, wire.NewSlotError(wire.CodeBadRequest, err.Error(),
		false), log) {
		from.Terminate(err)
	}
}

// refuseBody reports a request whose body cannot be read, and then gets rid of it.
func (e *Server) refuseBody(j *Job, err error) {
	j.Log.Error("a request cannot be read", zap.Error(err))
	e.giveUp(j, wire.Refusal(err), err)
}

// giveUp answers a request that no handler has seen, and lets it go.
func (e *Server) giveUp(j *Job, failure *wire.SlotError, spoiled error) {
	j.fault = failure
	e.settle(j, failure, spoiled)
}

// NewJob is the job of a request that was read.
func (e *Server) NewJob(scope Scope, from origin, h nats.Header, body []byte, request *wire.Request) *Job {
	j := &Job{Host: e.Host, Origin: from, Endpoint: e.Name, Header: h, body: body, Request: request,
		Around: e.Around, Timeout: e.Settings.Timeout, Started: time.Now(), Log: e.Log.With(Fields(request.Meta)...)}
	e.Prepare(scope.Sending, &j.Answers, request.Meta, wire.TraceOfHeader(h))
	return j
}

// serve hands a job to its handler and answers it. It returns false when the service stopped before that.
func (e *Server) serve(scope Scope, j *Job) bool {
	ctx, cancel := context.WithCancelCause(scope.Working)
	defer cancel(nil)
	j.Answers.GiveUp = cancel
	if j.single() {
		j.Answers.Hold() // nothing is told that another try may change
	}
	work := e.Begin(j)
	failure, begun := work.Run(&JobContext{ctx, j}, e.Slots, scope.Stopping)
	total := j.Answers.Close()
	switch {
	case !begun, total == 0 && failure != nil && failure.Code == wire.CodeShutdown:
		// Nothing was done: another instance can have it, as soon as this one's open pull is gone.
		if j.Origin.Nak(2 * pull.Settling) {
			return false
		}
		failure = wire.NewSlotError(wire.CodeShutdown, wire.ErrShutdown.Error(), true)
	case total == len(j.Request.Items):
		failure = nil // there is nothing left for it to speak for
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

// settle sends the end of the reply, buries a single request that died, and then lets the request go: as answered, or
// when spoiled says so as of no use. It reports whether all of that was done; otherwise the request is handed back.
func (e *Server) settle(j *Job, failure *wire.SlotError, spoiled error) bool {
	e.Stats.Failed(failure)
	if err := j.Answers.Send(failure); err != nil {
		j.Log.Error("the reply could not be sent; the request is handed back", zap.Error(err))
		j.Origin.Nak(NakDelay)
		return false
	}
	// Whoever waits has the answer first, however full the stream of the letters is.
	if j.fault != nil && j.single() && !e.bury(j.Answers.Ctx, j.Origin, j.Header, j.body, j.fault, j.Log) {
		return false
	}
	// JetStream has acknowledged every message of the reply, and the letter. Only now may the request go: before, a crash
	// would leave neither them nor the request.
	if spoiled != nil {
		j.Origin.Terminate(spoiled)
	} else {
		j.Origin.Acknowledge()
	}
	return true
}

// JobContext is the context of a handler. It knows the job, for what the handler asks of others.
type JobContext struct {
	context.Context //nolint:containedctx // it is a context
	Job             *Job
}

type jobKey struct{}

// Value answers for jobKey and passes on the rest.
func (c *JobContext) Value(key any) any {
	if key == (jobKey{}) {
		return c.Job
	}
	return c.Context.Value(key)
}

// JobOf returns the job that a handler was called for, given the handler's context or one made from it, or nil.
func JobOf(ctx context.Context) *Job {
	j, _ := ctx.Value(jobKey{}).(*Job)
	return j
}
