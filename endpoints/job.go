package endpoints

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

const (
	// handBackDelay is how long a request rests that could not be answered.
	handBackDelay = 2 * time.Second
	// foreignDelay is how long a request rests that speaks a version of the protocol that this side does not.
	foreignDelay = 10 * time.Second
)

// job is one request from its delivery to its acknowledgement.
type job struct {
	host     *host
	origin   origin
	endpoint string
	header   nats.Header // as it came; not to be changed
	body     []byte      // likewise
	request  *wire.Request
	around   around
	answers  answers
	timeout  time.Duration
	log      *zap.Logger
	started  time.Time
	// undecided says that the failure of the chunk is not one that the handler chose.
	undecided bool
	// spent says that no further try may follow, whatever deliveries are left.
	spent bool
	// fault is what a single request dies of once it is answered; nil when it does not.
	fault *wire.SlotError
}

// dealer returns what takes one request, which a puller holds, all the way. It returns when the request has been dealt
// with.
func (e *endpointServer) dealer(from *puller) func(scope, requestID, jetstream.Msg) (items int, took time.Duration) {
	return func(scope scope, id requestID, msg jetstream.Msg) (items int, took time.Duration) {
		meta, err := msg.Metadata()
		if err != nil {
			return 0, 0 // hold would have refused it
		}
		return e.accept(scope, queued{from, id, meta.NumDelivered}, msg.Headers(), msg.Data())
	}
}

// accept takes a request, wherever it came from, all the way.
func (e *endpointServer) accept(scope scope, from origin, h nats.Header, body []byte) (items int, took time.Duration) {
	e.stats.came(uint64(from.delivered()))
	request, err := wire.ParseRequest(h, body, e.host.limits)
	if request != nil && !request.ReplyTo.IsZero() && request.ReplyTo.Callee != e.name {
		err = wire.Malformed(wire.ReasonHeader, "%s names endpoint %s; this is %s", wire.HeaderReplyTo,
			request.ReplyTo.Callee, e.name)
		request = nil // to answer there would be to speak for another endpoint
	}
	if request == nil {
		e.refuse(scope, from, h, body, err)
		return 0, 0
	}
	j := e.newJob(scope, from, h, body, request)
	switch {
	case err != nil:
		e.refuseBody(j, err)
	case from.delivered() > request.Deliveries:
		j.log.Warn("a request was delivered many times and never answered; it goes back as failed")
		e.giveUp(j, wire.NewSlotError(wire.CodeDeliveries, "the chunk was delivered many times and never answered",
			true), nil)
	default:
		if e.serve(scope, j) {
			return len(request.Items), time.Since(j.started)
		}
	}
	return 0, 0
}

// refuse gets rid of a request whose headers cannot be read: there is nobody to answer.
func (e *endpointServer) refuse(scope scope, from origin, h nats.Header, body []byte, err error) {
	log := e.log.With(headerFields(h)...)
	var bad *wire.MalformedError
	foreign := errors.As(err, &bad) && bad.Reason == wire.ReasonVersion && h.Get(wire.HeaderVersion) != ""
	if foreign && from.delivered() < wire.MaxDeliver && from.handBack(foreignDelay) {
		log.Warn("a request speaks another version of the protocol; it is left to other instances", zap.Error(err))
		return
	}
	log.Error("a request cannot be read, and does not say whom to tell", zap.Error(err))
	// Whatever its mode: nobody else would ever know of it.
	if !from.persisted() || e.bury(scope.sending, from, h, body, wire.NewSlotError(wire.CodeBadRequest, err.Error(),
		false), log) {
		from.terminate(err)
	}
}

// refuseBody reports a request whose body cannot be read, and then gets rid of it.
func (e *endpointServer) refuseBody(j *job, err error) {
	j.log.Error("a request cannot be read", zap.Error(err))
	e.giveUp(j, wire.Refusal(err), err)
}

// giveUp answers a request that no handler has seen, and lets it go.
func (e *endpointServer) giveUp(j *job, failure *wire.SlotError, spoiled error) {
	j.fault = failure
	e.settle(j, failure, spoiled)
}

func (e *endpointServer) newJob(scope scope, from origin, h nats.Header, body []byte, request *wire.Request) *job {
	j := &job{host: e.host, origin: from, endpoint: e.name, header: h, body: body, request: request,
		around: e.around, timeout: e.settings.timeout, started: time.Now(), log: e.log.With(logFields(request.Meta)...)}
	e.prepare(scope.sending, &j.answers, request.Meta, wire.TraceOfHeader(h))
	return j
}

// serve hands a job to its handler and answers it. It returns false when the service stopped before that.
func (e *endpointServer) serve(scope scope, j *job) bool {
	ctx, cancel := context.WithCancelCause(scope.working)
	defer cancel(nil)
	j.answers.giveUp = cancel
	if j.single() {
		j.answers.hold() // nothing is told that another try may change
	}
	work := e.begin(j)
	failure, begun := work.run(&jobContext{ctx, j}, e.slots, scope.stopping)
	total := j.answers.close()
	switch {
	case !begun, total == 0 && failure != nil && failure.Code == wire.CodeShutdown:
		// Nothing was done: another instance can have it, as soon as this one's open pull is gone.
		if j.origin.handBack(2 * pull.Settling) {
			return false
		}
		failure = wire.NewSlotError(wire.CodeShutdown, wire.ErrShutdown.Error(), true)
	case total == len(j.request.Items):
		failure = nil // there is nothing left for it to speak for
	}
	if j.single() {
		if !e.conclude(j, failure) {
			return false
		}
	} else {
		e.settle(j, failure, nil)
	}
	answered := len(j.request.Items)
	if j.answers.unfinished { // the first stage of a flow
		answered = total
	}
	e.stats.add(len(j.request.Items), answered, j.answers.errors, time.Since(j.started))
	return true
}

// settle sends the end of the reply, buries a single request that died, and then lets the request go: as answered, or
// when spoiled says so as of no use. It reports whether all of that was done; otherwise the request is handed back.
func (e *endpointServer) settle(j *job, failure *wire.SlotError, spoiled error) bool {
	e.stats.failed(failure)
	if err := j.answers.send(failure); err != nil {
		j.log.Error("the reply could not be sent; the request is handed back", zap.Error(err))
		j.origin.handBack(handBackDelay)
		return false
	}
	// Whoever waits has the answer first, however full the stream of the letters is.
	if j.fault != nil && j.single() && !e.bury(j.answers.ctx, j.origin, j.header, j.body, j.fault, j.log) {
		return false
	}
	// JetStream has acknowledged every message of the reply, and the letter. Only now may the request go: before, a crash
	// would leave neither them nor the request.
	if spoiled != nil {
		j.origin.terminate(spoiled)
	} else {
		j.origin.acknowledge()
	}
	return true
}

// jobContext is the context of a handler. It knows the job, for what the handler asks of others.
type jobContext struct {
	context.Context //nolint:containedctx // it is a context
	job             *job
}

type jobKey struct{}

// Value answers for jobKey and passes on the rest.
func (c *jobContext) Value(key any) any {
	if key == (jobKey{}) {
		return c.job
	}
	return c.Context.Value(key)
}

// jobOf returns the job that a handler was called for, given the handler's context or one made from it, or nil.
func jobOf(ctx context.Context) *job {
	j, _ := ctx.Value(jobKey{}).(*job)
	return j
}
