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

// Listener takes operations over core NATS.
type Listener struct {
	producers *Producers
	nc        *nats.Conn
	sub       *nats.Subscription
	count     atomic.Int64
	answering sync.WaitGroup
}

// Listen takes operations over core NATS until the listener is closed.
func (p *Producers) Listen(nc *nats.Conn) (*Listener, error) {
	subject := endpoints.CollectSubject(everyCollector)
	l := &Listener{producers: p, nc: nc}
	var err error
	if l.sub, err = nc.QueueSubscribe(subject, queue, l.receive); err == nil {
		err = l.sub.SetPendingLimits(maxMessages, pendingBytes)
	}
	if err != nil {
		return nil, fmt.Errorf("subscribe to %s: %w", subject, err)
	}
	return l, nil
}

// Close returns once what came before has been answered, or ctx has ended.
func (l *Listener) Close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, drainTimeout)
	defer cancel()
	closed := l.sub.StatusChanged(nats.SubscriptionClosed)
	if !l.nc.IsConnected() { // then nobody says when it is drained
		_ = l.sub.Unsubscribe()
	} else if err := l.sub.Drain(); err == nil {
		select {
		case <-closed:
		case <-ctx.Done():
			_ = l.sub.Unsubscribe() // the connection is lost, and what was sent with it
		}
	}
	answered := make(chan struct{})
	go func() { l.answering.Wait(); close(answered) }()
	select {
	case <-answered:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("producers: %d messages were not answered in time", l.count.Load())
	}
}

// receive is called for each message, one at a time.
func (l *Listener) receive(msg *nats.Msg) {
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

func (l *Listener) add(ctx context.Context, msg *nats.Msg) (workqueue.AddedOps, error) {
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
func (l *Listener) answer(msg *nats.Msg, done workqueue.AddedOps, err error) {
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

// told returns what a producer is told of an error. What is not his doing is logged here.
func (p *Producers) told(err error) (endpoints.CollectCode, string) {
	var op *OpError
	var many *TooManyError
	var full *OverloadedError
	var setting *workqueue.SettingError
	var moved *workqueue.CollectorMovedError
	switch {
	case errors.As(err, &op):
		return endpoints.CollectInvalid, op.Error()
	case errors.As(err, &many):
		return endpoints.CollectTooLarge, many.Error()
	case errors.As(err, &full):
		return endpoints.CollectBusy, full.Error()
	case errors.As(err, &setting):
		return endpoints.CollectInvalid, setting.Error()
	case errors.As(err, &moved):
		return endpoints.CollectConflict, "the collector was changed meanwhile; add them again"
	case errors.Is(err, workqueue.ErrNotFound):
		return endpoints.CollectUnknown, "there is no such collector; see tranche collector list"
	}
	p.log.Error("operations could not be added", zap.Error(err))
	if isAway(err) {
		return endpoints.CollectUnavailable, "PostgreSQL cannot be reached, or is too slow; add them again with the same ids"
	}
	return endpoints.CollectInternal, "something went wrong inside; the log of this node says what"
}
