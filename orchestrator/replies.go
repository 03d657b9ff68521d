package orchestrator

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/internal/pull"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

const (
	// repliesAhead bounds the replies that a node fetches ahead; most are small.
	repliesAhead = 1024
	// rebindPause is the least time between two bindings of the reply consumer.
	rebindPause = 200 * time.Millisecond
)

// errCannotRecord ends the reading of replies while they cannot be recorded.
var errCannotRecord = errors.New("replies cannot be recorded")

// feed reads replies until ctx ends, and binds again whenever the stream or its consumer is lost.
func (r *recorder) feed(ctx context.Context, replies lanes[fetched]) {
	told, silent := time.Time{}, ""
	for ctx.Err() == nil {
		err := r.readReplies(ctx, replies)
		switch {
		case errors.Is(err, errCannotRecord):
			_ = r.node.retry(ctx, "reach PostgreSQL to record replies", inspect.New(r.node.store).Ping) // fails only when ctx has ended
		case err != nil && ctx.Err() == nil:
			next := pull.Subject(r.node.js, wire.StreamReply, wire.RecorderConsumer)
			err = stream.PermissionsOf(r.node.nc).Explain(err, next)
			if err.Error() != silent || time.Since(told) > sameError {
				told, silent = time.Now(), err.Error()
				r.node.log.Warn("read replies", zap.Error(err))
			}
			r.node.Look()
		}
		_ = backoff.Sleep(ctx, rebindPause)
	}
}

// readReplies binds to the reply consumer and feeds the recorders until ctx ends or the streams change. What was read
// ahead is then left to another node, which may have it at once.
func (r *recorder) readReplies(ctx context.Context, replies lanes[fetched]) error {
	_, changed := r.streams.Now()
	made, err := r.replies.bind(ctx)
	if err != nil {
		return err
	}
	bound, unbind := context.WithCancelCause(ctx)
	defer unbind(nil)
	go func() {
		select {
		case <-bound.Done():
		case <-changed:
			unbind(nil)
		case <-r.unrecorded:
			unbind(errCannotRecord)
		}
	}()
	err = pull.Read(bound, pull.Source{
		JS: r.node.js, Stream: wire.StreamReply, Consumer: wire.RecorderConsumer, Made: made,
		Messages: repliesAhead, Bytes: max(recordBytes, 2*int(r.node.nc.MaxPayload())), Small: isSmall,
	}, func(msg jetstream.Msg) {
		select {
		case replies.of(isSmall(msg)) <- fetched{msg, made}:
		case <-bound.Done():
			r.replies.settle(fetched{msg, made}, jetstream.Msg.Nak)
		}
	})
	if cause := context.Cause(bound); errors.Is(cause, errCannotRecord) {
		return cause
	}
	return err
}
