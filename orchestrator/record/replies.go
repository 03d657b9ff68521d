package record

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
	"github.com/tranchehq/tranche/orchestrator/internal/kernel"
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
func (r *Recorder) feed(ctx context.Context, replies kernel.Lanes[kernel.Message]) {
	told, silent := time.Time{}, ""
	for ctx.Err() == nil {
		err := r.readReplies(ctx, replies)
		switch {
		case errors.Is(err, errCannotRecord):
			// It fails only when ctx has ended.
			_ = r.node.Retry(ctx, "reach PostgreSQL to record replies", inspect.New(r.node.Store).Ping)
		case err != nil && ctx.Err() == nil:
			next := pull.Subject(r.node.JS, wire.StreamReply, wire.RecorderConsumer)
			err = stream.PermissionsOf(r.node.NC).Explain(err, next)
			if err.Error() != silent || time.Since(told) > kernel.SameError {
				told, silent = time.Now(), err.Error()
				r.node.Log.Warn("read replies", zap.Error(err))
			}
			r.node.Look()
		}
		_ = backoff.Sleep(ctx, rebindPause)
	}
}

// readReplies binds to the reply consumer and feeds the recorders until ctx ends or the streams change. What was read
// ahead is then left to another node, which may have it at once.
func (r *Recorder) readReplies(ctx context.Context, replies kernel.Lanes[kernel.Message]) error {
	_, changed := r.streams.Now()
	made, err := r.replies.Bind(ctx)
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
		JS: r.node.JS, Stream: wire.StreamReply, Consumer: wire.RecorderConsumer, Made: made,
		Messages: repliesAhead, Bytes: max(kernel.RecordBytes, 2*int(r.node.NC.MaxPayload())), Small: isSmall,
	}, func(msg jetstream.Msg) {
		select {
		case replies.Of(isSmall(msg)) <- kernel.Message{Msg: msg, Made: made}:
		case <-bound.Done():
			r.replies.Settle(kernel.Message{Msg: msg, Made: made}, jetstream.Msg.Nak)
		}
	})
	if cause := context.Cause(bound); errors.Is(cause, errCannotRecord) {
		return cause
	}
	return err
}
