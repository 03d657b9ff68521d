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
	// MaxDeliveries is how often a request is delivered before the SDK answers it with CodeDeliveries instead: something
	// in it kills its services, and in smaller pieces the node can find out what. JetStream counts every delivery alike,
	// those too that a service handed back because it was stopping or could not send its reply. So the limit is far over
	// what a deployment of many instances takes: it is there to end a loop, not to judge a request.
	MaxDeliveries = 20
	// handBackDelay is how long a request rests that could not be answered.
	handBackDelay = 2 * time.Second
	// foreignDelay is how long a request rests that speaks a version of the protocol that this side does not.
	foreignDelay = 10 * time.Second
)

// job is one request from its delivery to its acknowledgement.
type job struct {
	id      requestID
	request *request
	answers answers
	timeout time.Duration
	log     *zap.Logger
	started time.Time
}

// hold notes a delivered request. It returns false when there is nothing to do: the request was delivered again while
// it is being handled, and one acknowledgement will settle both deliveries.
func (e *endpointServer) hold(d delivery) (id requestID, isNew bool) {
	meta, err := d.msg.Metadata()
	if err != nil { // not a JetStream message; there is nothing to acknowledge
		e.log.Error("a message without JetStream metadata is dropped", zap.Error(err))
		return id, false
	}
	id = requestID{meta.Sequence.Stream, meta.Timestamp.UnixNano()}
	return id, e.room.hold(id, d)
}

// handle takes one request that is held all the way. It returns when the request has been dealt with.
func (e *endpointServer) handle(scope scope, id requestID, msg jetstream.Msg) {
	items, took := 0, time.Duration(0)
	defer func() { e.room.drop(id, items, took) }()
	meta, err := msg.Metadata()
	if err != nil {
		return // hold would have refused it
	}
	request, err := parseRequest(msg.Headers(), msg.Data(), e.service.limits)
	if request == nil {
		e.refuse(id, msg.Headers(), meta.NumDelivered, err)
		return
	}
	j := e.newJob(scope, id, msg.Headers(), request)
	switch {
	case err != nil:
		e.refuseBody(j, err)
	case meta.NumDelivered > MaxDeliveries:
		j.log.Warn("a request was delivered many times and never answered; it goes back as failed")
		e.settle(j, newSlotError(CodeDeliveries, "the chunk was delivered many times and never answered", true), acknowledge)
	default:
		begun := e.serve(scope, j)
		if begun {
			items, took = len(request.items), time.Since(j.started)
		}
	}
}

// refuse gets rid of a request whose headers cannot be read: nobody can be told.
func (e *endpointServer) refuse(id requestID, h nats.Header, delivered uint64, err error) {
	var bad *MalformedError
	foreign := errors.As(err, &bad) && bad.Reason == ReasonVersion && h.Get(HeaderVersion) != ""
	if foreign && delivered <= MaxDeliveries {
		e.log.Warn("a request speaks another version of the protocol; it is left to other instances", zap.Error(err))
		e.tell(id, "hand back", handBack(foreignDelay))
		return
	}
	e.log.Error("an unreadable request is dropped", zap.Error(err))
	e.tell(id, "terminate", terminate(err))
}

// refuseBody reports a request whose body cannot be read, and then gets rid of it.
func (e *endpointServer) refuseBody(j *job, err error) {
	j.log.Error("a request cannot be read", zap.Error(err))
	e.settle(j, newSlotError(CodeBadRequest, err.Error(), false), terminate(err))
}

func (e *endpointServer) newJob(scope scope, id requestID, h nats.Header, request *request) *job {
	j := &job{id: id, request: request, timeout: e.options.timeout, started: time.Now(),
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
		e.tell(j.id, "hand back", handBack(2*settle))
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
		e.tell(j.id, "hand back", handBack(handBackDelay))
		return
	}
	// JetStream has acknowledged every message of the reply. Only now may the request go: before, a crash would leave
	// neither the reply nor the request.
	e.tell(j.id, "acknowledge", how)
}
