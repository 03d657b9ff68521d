// Package deadletter keeps requests that no service could deal with, takes out of the streams what is delivered no
// more, tells who waits for it, and sends again what somebody has requeued.
package deadletter

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
	"github.com/tranchehq/tranche/orchestrator/internal/kernel"
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

// meter measures what is kept.
type meter interface{ Buried(endpoint string) }

// Letters keeps what no service could deal with, and sends it again.
type Letters struct {
	node      *kernel.Kernel
	endpoints kernel.Ensurer
	after     kernel.Seer
	meter     meter
	reader    *kernel.SharedConsumer // of what services have put aside
	requeued  chan struct{}          // requeued dead letters wait to be sent
	exhausted chan exhaustion
}

// New returns what takes in dead letters, and sends them again.
func New(k *kernel.Kernel, endpoints kernel.Ensurer, after kernel.Seer, meter meter) *Letters {
	return &Letters{node: k, endpoints: endpoints, after: after, meter: meter,
		reader:   kernel.NewShared(k, wire.StreamDead, wire.DeadLetterConsumer, stream.EnsureDeadLetterReader),
		requeued: make(chan struct{}, 1), exhausted: make(chan exhaustion, advisoryRoom)}
}

// keep stores a dead letter, unless it is there already, and tells of one that is new.
func (l *Letters) keep(ctx context.Context, letter *deadletter.DeadLetter) error {
	isNew, err := deadletter.New(l.node.Store).Bury(ctx, *letter)
	if isNew {
		l.node.Stats.Buried.Add(1)
		l.meter.Buried(letter.Endpoint)
		l.node.Log.Warn("dead letter", zap.String("endpoint", letter.Endpoint), zap.String("cause", letter.Cause),
			zap.String("message", letter.Message), zap.String("service", letter.Service))
	}
	return err
}

// GivenUp keeps what a service has given up after too many deliveries.
func (l *Letters) GivenUp(ctx context.Context, a *settle.Answer, run uuid.UUID) error {
	timed, cancel := context.WithTimeout(ctx, kernel.ReadTimeout)
	defer cancel()
	letter := givenUpDeadLetter(a, run)
	return l.keep(timed, &letter)
}

// ReadDeadLetters takes dead letters into PostgreSQL until ctx ends, and binds again whenever the stream or its
// consumer is lost.
func (l *Letters) ReadDeadLetters(ctx, draining context.Context) {
	for ctx.Err() == nil {
		if err := l.readDeadLettersBound(ctx, draining); err != nil && ctx.Err() == nil {
			l.node.Log.Warn("read dead letters", zap.Error(err))
		}
		_ = backoff.Sleep(ctx, deadLettersPause)
	}
}

// readDeadLettersBound binds to the consumer and takes dead letters in until ctx ends or the binding is lost. What was
// fetched ahead is taken in, too, unless PostgreSQL cannot be reached.
func (l *Letters) readDeadLettersBound(ctx, draining context.Context) error {
	made, err := l.reader.Bind(ctx)
	if err != nil {
		return err
	}
	bound, unbind := context.WithCancel(ctx)
	defer unbind()
	var failed error
	err = pull.Read(bound, pull.Source{
		JS: l.node.JS, Stream: wire.StreamDead, Consumer: wire.DeadLetterConsumer, Made: made,
		Messages: deadLettersAhead, Bytes: max(kernel.RecordBytes, 2*int(l.node.NC.MaxPayload())),
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
		// It fails only when ctx has ended.
		_ = l.node.Retry(ctx, "reach PostgreSQL to keep dead letters", inspect.New(l.node.Store).Ping)
		return failed
	}
	return err
}

// buryDeadLetter buries a dead letter and acknowledges it. One that PostgreSQL refuses for what is in it is kept
// without its contents, so that it does not come again for ever.
func (l *Letters) buryDeadLetter(ctx context.Context, msg jetstream.Msg, made time.Time) error {
	if stream.IsProbe(msg.Subject()) {
		l.reader.Settle(kernel.Message{Msg: msg, Made: made}, jetstream.Msg.Ack)
		return nil
	}
	timed, cancel := context.WithTimeout(ctx, kernel.ReadTimeout)
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
	// After the commit: a crash in between brings it again.
	l.reader.Settle(kernel.Message{Msg: msg, Made: made}, jetstream.Msg.Ack)
	return nil
}

func (l *Letters) giveBackDeadLetter(msg jetstream.Msg, made time.Time) {
	l.reader.Settle(kernel.Message{Msg: msg, Made: made}, kernel.GiveBack)
}
