package producers

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/workqueue"
)

const (
	// queue is the queue group of the nodes that listen: each message goes to one of them.
	queue = "tranche-collect"
	// everyCollector is where operations for any collector come in.
	everyCollector = "*"

	// answerTimeout bounds the work for a message. Whoever sent it has asked again by then.
	answerTimeout = 10 * time.Second
	// drainTimeout is how long what was taken may take when a node stops.
	drainTimeout = 5 * time.Second

	// maxMessages bounds the messages that are worked on at once, pendingBytes those that wait in the client.
	maxMessages  = 4096
	pendingBytes = 64 << 20
)

// Listen takes operations over core NATS until ctx ends and those that came before have been answered.
func (p *Producers) Listen(ctx context.Context, nc *nats.Conn) error {
	subject := endpoints.CollectSubject(everyCollector)
	l := &listener{producers: p, nc: nc}
	sub, err := nc.QueueSubscribe(subject, queue, l.receive)
	if err == nil {
		err = sub.SetPendingLimits(maxMessages, pendingBytes)
	}
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	<-ctx.Done()
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), drainTimeout)
	defer cancel()
	closed := sub.StatusChanged(nats.SubscriptionClosed)
	if err := sub.Drain(); err == nil {
		select {
		case <-closed:
		case <-stop.Done():
			_ = sub.Unsubscribe() // the connection is lost, and what was sent with it
		}
	}
	return l.wait(stop)
}

// listener answers messages.
type listener struct {
	producers *Producers
	nc        *nats.Conn
	count     atomic.Int64
	answering sync.WaitGroup
}

// receive is called for each message, one at a time.
func (l *listener) receive(msg *nats.Msg) {
	if msg.Reply == "" {
		l.producers.log.Warn("operations came without a subject to answer to, and were not added; send them as a request",
			zap.String("subject", msg.Subject))
		return
	}
	if l.count.Add(1) > maxMessages {
		l.count.Add(-1)
		l.answer(msg, workqueue.AddedOps{}, &OverloadedError{})
		return
	}
	l.answering.Go(func() {
		defer l.count.Add(-1)
		ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
		defer cancel()
		done, err := l.add(ctx, msg)
		l.answer(msg, done, err)
	})
}

func (l *listener) add(ctx context.Context, msg *nats.Msg) (workqueue.AddedOps, error) {
	collector, err := endpoints.ParseCollectSubject(msg.Subject)
	if err != nil {
		return workqueue.AddedOps{}, &OpError{Problem: err.Error()}
	}
	if v := msg.Header.Get(endpoints.HeaderVersion); v != "" && v != endpoints.ProtocolVersion {
		return workqueue.AddedOps{}, &OpError{Problem: fmt.Sprintf("%s is %.20q; this node speaks %s",
			endpoints.HeaderVersion, v, endpoints.ProtocolVersion)}
	}
	return l.producers.AddFrom(ctx, collector, bytes.NewReader(msg.Data))
}

// answer comes after the commit.
func (l *listener) answer(msg *nats.Msg, done workqueue.AddedOps, err error) {
	reply := endpoints.CollectReply{Collected: endpoints.Collected{Added: done.Added, Duplicates: done.Duplicates}}
	if err != nil {
		code, message := l.producers.told(err)
		reply = endpoints.CollectReply{Error: &endpoints.CollectError{Code: code, Message: message}}
	}
	body, err := json.Marshal(reply)
	if err == nil {
		err = msg.RespondMsg(&nats.Msg{Data: body, Header: nats.Header{
			endpoints.HeaderVersion: {endpoints.ProtocolVersion}, endpoints.HeaderContentType: {"application/json"},
		}})
	}
	if err != nil {
		l.producers.log.Warn("whoever added operations could not be answered, and may add them again",
			zap.String("subject", msg.Subject), zap.Error(err))
	}
}

// wait returns once all messages that came have been answered.
func (l *listener) wait(ctx context.Context) error {
	answered := make(chan struct{})
	go func() { l.answering.Wait(); close(answered) }()
	select {
	case <-answered:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("producers: %d messages were not answered in time", l.count.Load())
	}
}

// told returns what a producer is told of an error. What is not his doing is logged here.
func (p *Producers) told(err error) (endpoints.CollectCode, string) {
	var op *OpError
	var many *TooManyError
	var full *OverloadedError
	var setting *workqueue.SettingError
	switch {
	case errors.As(err, &op):
		return endpoints.CollectInvalid, op.Error()
	case errors.As(err, &many):
		return endpoints.CollectTooLarge, many.Error()
	case errors.As(err, &full):
		return endpoints.CollectBusy, full.Error()
	case errors.As(err, &setting):
		return endpoints.CollectInvalid, setting.Error()
	case errors.Is(err, workqueue.ErrNotFound):
		return endpoints.CollectUnknown, "there is no such collector; see tranche collector list"
	}
	p.log.Error("operations could not be added", zap.Error(err))
	if isAway(err) {
		return endpoints.CollectUnavailable, "PostgreSQL cannot be reached, or is too slow; add them again with the same ids"
	}
	return endpoints.CollectInternal, "something went wrong inside; the log of this node says what"
}
