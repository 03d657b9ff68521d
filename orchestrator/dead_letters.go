package orchestrator

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/internal/pull"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

const (
	// deadLettersAhead bounds the dead letters that a node fetches ahead.
	deadLettersAhead = 8
	// deadLettersPause is the least time between two bindings of the consumer.
	deadLettersPause = time.Second
)

// readDeadLetters takes dead letters into PostgreSQL until ctx ends, and binds again whenever the stream or its
// consumer is lost.
func (n *Node) readDeadLetters(ctx, draining context.Context) {
	for ctx.Err() == nil {
		if err := n.readDeadLettersBound(ctx, draining); err != nil && ctx.Err() == nil {
			n.log.Warn("read dead letters", zap.Error(err))
		}
		_ = backoff.Sleep(ctx, deadLettersPause)
	}
}

// readDeadLettersBound binds to the consumer and takes dead letters in until ctx ends or the binding is lost. What was
// fetched ahead is taken in, too, unless PostgreSQL cannot be reached.
func (n *Node) readDeadLettersBound(ctx, draining context.Context) error {
	made, err := n.bind(ctx, &n.deadReader, stream.EnsureDeadLetterReader)
	if err != nil {
		return err
	}
	bound, unbind := context.WithCancel(ctx)
	defer unbind()
	var failed error
	err = pull.Read(bound, pull.Source{
		JS: n.js, Stream: wire.StreamDead, Consumer: wire.DeadLetterConsumer, Made: made,
		Messages: deadLettersAhead, Bytes: max(recordBytes, 2*int(n.nc.MaxPayload())),
	}, func(msg jetstream.Msg) {
		if failed == nil {
			failed = n.buryDeadLetter(draining, msg, made)
		}
		if failed != nil {
			n.giveBackDeadLetter(msg, made)
			unbind()
		}
	})
	if failed != nil {
		_ = n.retry(ctx, "reach PostgreSQL to keep dead letters", inspect.New(n.store).Ping) // fails only when ctx has ended
		return failed
	}
	return err
}

// buryDeadLetter buries a dead letter and acknowledges it. One that PostgreSQL refuses for what is in it is kept
// without its contents, so that it does not come again for ever.
func (n *Node) buryDeadLetter(ctx context.Context, msg jetstream.Msg, made time.Time) error {
	if stream.IsProbe(msg.Subject()) {
		n.settleOf(&n.deadReader, fetched{msg, made}, jetstream.Msg.Ack)
		return nil
	}
	timed, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	letter := deadLetterIn(msg)
	isNew, err := deadletter.New(n.store).Bury(timed, letter)
	if workqueue.Refused(err) {
		bare := deadletter.DeadLetter{MsgID: letter.MsgID, Endpoint: letter.Endpoint, Cause: causeUnreadable,
			Message: err.Error(), NoBody: true}
		isNew, err = deadletter.New(n.store).Bury(timed, bare)
	}
	if err != nil {
		return err
	}
	if isNew {
		n.stats.buried.Add(1)
		n.cfg.Meter.Happened(EventDead, letter.Endpoint, 1)
		n.log.Warn("dead letter", zap.String("endpoint", letter.Endpoint), zap.String("cause", letter.Cause),
			zap.String("message", letter.Message), zap.String("service", letter.Service))
	}
	n.settleOf(&n.deadReader, fetched{msg, made},
		jetstream.Msg.Ack) // after the commit: a crash in between brings it again
	return nil
}

func (n *Node) giveBackDeadLetter(msg jetstream.Msg, made time.Time) {
	n.settleOf(&n.deadReader, fetched{msg, made}, giveBack)
}
