package endpoints

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
)

const (
	// handBackDelay is how long a request rests that could not be answered.
	handBackDelay = 2 * time.Second
	// foreignDelay is how long a request rests that speaks a version of the protocol that this side does not.
	foreignDelay = 10 * time.Second
)

// job is one request from its delivery to its acknowledgement.
type job struct {
	id       requestID
	endpoint string
	header   nats.Header // as it came; not to be changed
	request  *request
	wrap     []Wrapper
	answers  answers
	timeout  time.Duration
	log      *zap.Logger
	started  time.Time
}

// deal takes one request that is held all the way. It returns when the request has been dealt with.
func (e *endpointServer) deal(scope scope, id requestID, msg jetstream.Msg) (items int, took time.Duration) {
	meta, err := msg.Metadata()
	if err != nil {
		return 0, 0 // hold would have refused it
	}
	request, err := parseRequest(msg.Headers(), msg.Data(), e.service.limits)
	if request != nil && !request.ReplyTo.IsZero() && request.ReplyTo.Callee != e.name {
		err = malformed(ReasonHeader, "%s names endpoint %s; this is %s", HeaderReplyTo, request.ReplyTo.Callee, e.name)
		request = nil // to answer there would be to speak for another endpoint
	}
	if request == nil {
		e.refuse(id, msg.Headers(), meta.NumDelivered, err)
		return 0, 0
	}
	j := e.newJob(scope, id, msg.Headers(), request)
	switch {
	case err != nil:
		e.refuseBody(j, err)
	case meta.NumDelivered > uint64(request.Deliveries):
		j.log.Warn("a request was delivered many times and never answered; it goes back as failed")
		e.settle(j, newSlotError(CodeDeliveries, "the chunk was delivered many times and never answered", true), acknowledge)
	default:
		if e.serve(scope, j) {
			return len(request.items), time.Since(j.started)
		}
	}
	return 0, 0
}

// refuse gets rid of a request whose headers cannot be read: nobody can be told.
func (e *endpointServer) refuse(id requestID, h nats.Header, delivered uint64, err error) {
	var bad *MalformedError
	foreign := errors.As(err, &bad) && bad.Reason == ReasonVersion && h.Get(HeaderVersion) != ""
	if foreign && delivered < MaxDeliver {
		e.log.Warn("a request speaks another version of the protocol; it is left to other instances", zap.Error(err))
		e.work.tell(id, "hand back", handBack(foreignDelay))
		return
	}
	e.log.Error("an unreadable request is dropped", zap.Error(err))
	e.work.tell(id, "terminate", terminate(err))
}

// refuseBody reports a request whose body cannot be read, and then gets rid of it.
func (e *endpointServer) refuseBody(j *job, err error) {
	j.log.Error("a request cannot be read", zap.Error(err))
	e.settle(j, newSlotError(CodeBadRequest, err.Error(), false), terminate(err))
}

func (e *endpointServer) newJob(scope scope, id requestID, h nats.Header, request *request) *job {
	j := &job{id: id, endpoint: e.name, header: h, request: request, wrap: e.options.wrap,
		timeout: e.options.timeout, started: time.Now(),
		log: e.log.With(zap.Stringer("run", request.Run), zap.Stringer("slice", request.Slice))}
	e.prepare(scope.sending, &j.answers, request.Meta, h.Get(HeaderTrace))
	return j
}

// serve hands a job to its handler and answers it. It returns false when the service stopped before that.
func (e *endpointServer) serve(scope scope, j *job) bool {
	ctx, cancel := context.WithCancelCause(scope.working)
	defer cancel(nil)
	j.answers.giveUp = cancel
	work := e.begin(j)
	failure, begun := work.run(ctx, e.slots, scope.stopping)
	total := j.answers.close()
	switch {
	case !begun, total == 0 && failure != nil && failure.Code == CodeShutdown:
		// Nothing was done: another instance can have it, as soon as this one's open pull is gone.
		e.work.tell(j.id, "hand back", handBack(2*settle))
		return false
	case total == len(j.request.items):
		failure = nil // there is nothing left for it to speak for
	}
	e.settle(j, failure, acknowledge)
	e.stats.add(len(j.request.items), j.answers.errors, time.Since(j.started))
	return true
}

// settle sends the end of the reply and then lets the request go, by acknowledge or terminate.
func (e *endpointServer) settle(j *job, failure *SlotError, how func(jetstream.Msg) error) {
	if err := j.answers.send(failure); err != nil {
		j.log.Error("the reply could not be sent; the request is handed back", zap.Error(err))
		e.work.tell(j.id, "hand back", handBack(handBackDelay))
		return
	}
	// JetStream has acknowledged every message of the reply. Only now may the request go: before, a crash would leave
	// neither the reply nor the request.
	e.work.tell(j.id, "acknowledge", how)
}
