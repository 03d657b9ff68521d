package ingest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/database"
)

const (
	// queue is the queue group of listening nodes: each message goes to one of them.
	queue = "tranche-collect"
	// everyCollector is the wildcard for all collectors.
	everyCollector = "*"

	// answerTimeout limits the work for a message. The sender has retried by then.
	answerTimeout = 10 * time.Second

	// maxMessages and maxBytes limit the messages in progress.
	maxMessages = 4096
	maxBytes    = 64 << 20
)

// Listen accepts operations over core NATS until the responder is closed.
func (p *Producers) Listen(nc *nats.Conn) (*Responder, error) {
	return NewResponder(nc, ResponderConfig{
		Subject: wire.CollectSubject(everyCollector), Queue: queue, Timeout: answerTimeout,
		MaxRequests: maxMessages, MaxBytes: maxBytes,
		Answer: func(ctx context.Context, msg *nats.Msg) {
			if p.wantsAnswer(msg) {
				done, err := p.addMessage(ctx, msg)
				p.answer(msg, done, err)
			}
		},
		Refuse: func(msg *nats.Msg) {
			if p.wantsAnswer(msg) {
				p.answer(msg, collector.AddedOps{}, &OverloadedError{})
			}
		},
	})
}

// wantsAnswer is false without a reply subject: the sender could not learn whether to retry.
func (p *Producers) wantsAnswer(msg *nats.Msg) bool {
	if msg.Reply != "" {
		return true
	}
	p.log.Warn("operations came without a subject to answer to, and were not added; send them as a request",
		zap.String("subject", msg.Subject))
	return false
}

func (p *Producers) addMessage(ctx context.Context, msg *nats.Msg) (collector.AddedOps, error) {
	name, err := wire.ParseCollectSubject(msg.Subject)
	if err != nil {
		return collector.AddedOps{}, &OpError{Problem: err.Error()}
	}
	if v := msg.Header.Get(wire.HeaderVersion); v != "" && v != wire.ProtocolVersion {
		return collector.AddedOps{}, &OpError{Problem: fmt.Sprintf("%s is %.20q; this node speaks %s",
			wire.HeaderVersion, v, wire.ProtocolVersion)}
	}
	return p.AddFrom(ctx, name, bytes.NewReader(msg.Data))
}

// answer runs after the commit.
func (p *Producers) answer(msg *nats.Msg, done collector.AddedOps, err error) {
	reply := wire.CollectReply{Collected: wire.Collected{Added: done.Added, Duplicates: done.Duplicates}}
	if err != nil {
		code, message := p.told(err)
		reply = wire.CollectReply{Error: &wire.CollectError{Code: code, Message: message}}
	}
	body, err := json.Marshal(reply)
	if err == nil {
		err = msg.RespondMsg(&nats.Msg{Data: body, Header: nats.Header{
			wire.HeaderVersion: {wire.ProtocolVersion}, wire.HeaderContentType: {"application/json"},
		}})
	}
	if err != nil {
		p.log.Warn("the producer of operations could not be answered and may add them again",
			zap.String("subject", msg.Subject), zap.Error(err))
	}
}

// told returns an error as shown to a producer. Errors that are not the producer's are logged here.
func (p *Producers) told(err error) (wire.CollectCode, string) {
	for _, known := range []struct {
		find func(error) error
		code wire.CollectCode
	}{
		{as[*OpError], wire.CollectInvalid}, {as[*TooManyError], wire.CollectTooLarge},
		{as[*OverloadedError], wire.CollectBusy}, {as[*EnrichError], wire.CollectUnavailable},
	} {
		if found := known.find(err); found != nil {
			return known.code, found.Error()
		}
	}
	switch {
	case as[*collector.MovedError](err) != nil:
		return wire.CollectConflict, "the collector was changed meanwhile; add them again"
	case errors.Is(err, workqueue.ErrNotFound):
		return wire.CollectUnknown, "there is no such collector; see tranche collector list"
	}
	p.log.Error("operations could not be added", zap.Error(err))
	if database.Unavailable(err) {
		return wire.CollectUnavailable, "PostgreSQL cannot be reached, or is too slow; add them again with the same ids"
	}
	return wire.CollectInternal, "something went wrong inside; the log of this node says what"
}

func as[T error](err error) error {
	if found, ok := errors.AsType[T](err); ok {
		return found
	}
	return nil
}
