package orchestrator

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/internal/pull"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/deadletter"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/settle"
)

const (
	// deadLettersAhead bounds the dead letters that a node fetches ahead.
	deadLettersAhead = 8
	// deadLettersPause is the least time between two bindings of the consumer.
	deadLettersPause = time.Second
)

// letterMeter measures what is kept.
type letterMeter interface{ Buried(endpoint string) }

// letters keeps what no service could deal with, and sends it again.
type letters struct {
	node      *kernel
	endpoints Ensurer
	after     Seer
	meter     letterMeter
	reader    *shared       // of what services have put aside
	requeued  chan struct{} // requeued dead letters wait to be sent
	exhausted chan exhaustion
}

func newLetters(k *kernel, endpoints Ensurer, after Seer, meter letterMeter) *letters {
	return &letters{node: k, endpoints: endpoints, after: after, meter: meter,
		reader:   newShared(k, wire.StreamDead, wire.DeadLetterConsumer, stream.EnsureDeadLetterReader),
		requeued: make(chan struct{}, 1), exhausted: make(chan exhaustion, advisoryRoom)}
}

// keep stores a dead letter, unless it is there already, and tells of one that is new.
func (l *letters) keep(ctx context.Context, letter *deadletter.DeadLetter) error {
	isNew, err := deadletter.New(l.node.store).Bury(ctx, *letter)
	if isNew {
		l.node.stats.buried.Add(1)
		l.meter.Buried(letter.Endpoint)
		l.node.log.Warn("dead letter", zap.String("endpoint", letter.Endpoint), zap.String("cause", letter.Cause),
			zap.String("message", letter.Message), zap.String("service", letter.Service))
	}
	return err
}

// GivenUp keeps what a service has given up after too many deliveries.
func (l *letters) GivenUp(ctx context.Context, a *settle.Answer, run uuid.UUID) error {
	timed, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	letter := givenUpDeadLetter(a, run)
	return l.keep(timed, &letter)
}

// readDeadLetters takes dead letters into PostgreSQL until ctx ends, and binds again whenever the stream or its
// consumer is lost.
func (l *letters) readDeadLetters(ctx, draining context.Context) {
	for ctx.Err() == nil {
		if err := l.readDeadLettersBound(ctx, draining); err != nil && ctx.Err() == nil {
			l.node.log.Warn("read dead letters", zap.Error(err))
		}
		_ = backoff.Sleep(ctx, deadLettersPause)
	}
}

// readDeadLettersBound binds to the consumer and takes dead letters in until ctx ends or the binding is lost. What was
// fetched ahead is taken in, too, unless PostgreSQL cannot be reached.
func (l *letters) readDeadLettersBound(ctx, draining context.Context) error {
	made, err := l.reader.bind(ctx)
	if err != nil {
		return err
	}
	bound, unbind := context.WithCancel(ctx)
	defer unbind()
	var failed error
	err = pull.Read(bound, pull.Source{
		JS: l.node.js, Stream: wire.StreamDead, Consumer: wire.DeadLetterConsumer, Made: made,
		Messages: deadLettersAhead, Bytes: max(recordBytes, 2*int(l.node.nc.MaxPayload())),
	}, func(msg jetstream.Msg) {
		if failed == nil {
			failed = l.buryDeadLetter(draining, msg, made)
		}
		if failed != nil {
			l.giveBackDeadLetter(msg, made)
			unbind()
		}
	})
	if failed != nil {
		_ = l.node.retry(ctx, "reach PostgreSQL to keep dead letters", inspect.New(l.node.store).Ping) // fails only when ctx has ended
		return failed
	}
	return err
}

// buryDeadLetter buries a dead letter and acknowledges it. One that PostgreSQL refuses for what is in it is kept
// without its contents, so that it does not come again for ever.
func (l *letters) buryDeadLetter(ctx context.Context, msg jetstream.Msg, made time.Time) error {
	if stream.IsProbe(msg.Subject()) {
		l.reader.settle(fetched{msg, made}, jetstream.Msg.Ack)
		return nil
	}
	timed, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	letter := deadLetterIn(msg)
	err := l.keep(timed, &letter)
	if workqueue.Refused(err) {
		err = l.keep(timed, &deadletter.DeadLetter{MsgID: letter.MsgID, Endpoint: letter.Endpoint, Cause: causeUnreadable,
			Message: err.Error(), NoBody: true})
	}
	if err != nil {
		return err
	}
	l.reader.settle(fetched{msg, made}, jetstream.Msg.Ack) // after the commit: a crash in between brings it again
	return nil
}

func (l *letters) giveBackDeadLetter(msg jetstream.Msg, made time.Time) {
	l.reader.settle(fetched{msg, made}, giveBack)
}
