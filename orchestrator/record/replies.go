package record

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/internal/pull"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/settle"
)

const (
	// repliesAhead limits the replies that a node prefetches; most are small.
	repliesAhead = 1024
	// rebindPause is the least time between bindings of the reply consumer.
	rebindPause = 200 * time.Millisecond
)

var errCannotRecord = errors.New("replies cannot be recorded")

// feed reads replies until ctx ends. It binds again when the stream or its consumer is lost.
func (r *Recorder) feed(ctx context.Context, replies core.Lanes[core.Message]) {
	told, silent := time.Time{}, ""
	for ctx.Err() == nil {
		err := r.readReplies(ctx, replies)
		switch {
		case errors.Is(err, errCannotRecord):
			// Retry fails only once ctx is done.
			_ = r.node.Retry(ctx, "reach PostgreSQL to record replies", inspect.New(r.node.Store).Ping)
		case err != nil && ctx.Err() == nil:
			next := pull.Subject(r.node.JS, wire.StreamReply, wire.RecorderConsumer)
			err = stream.PermissionsOf(r.node.NC).Explain(err, next)
			if err.Error() != silent || time.Since(told) > core.SameError {
				told, silent = time.Now(), err.Error()
				r.node.Log.Warn("read replies", zap.Error(err))
			}
			r.node.Look()
		}
		_ = backoff.Sleep(ctx, rebindPause)
	}
}

// readReplies feeds the recorders until ctx ends or the streams change. Then it releases prefetched replies.
func (r *Recorder) readReplies(ctx context.Context, replies core.Lanes[core.Message]) error {
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
		Messages: repliesAhead, Bytes: max(core.RecordBytes, 2*int(r.node.NC.MaxPayload())), Small: isSmall,
	}, func(msg jetstream.Msg) {
		reply := core.Message{Msg: msg, Made: made}
		if size := weight(reply); size == 0 || r.held.Acquire(bound, size) == nil {
			select {
			case replies.Of(isSmall(msg)) <- reply:
				r.node.Awaited.Came(msg.Headers().Get(wire.HeaderSlice))
				return
			case <-bound.Done():
				r.held.Release(size)
			}
		}
		r.replies.Settle(reply, jetstream.Msg.Nak)
	})
	if cause := context.Cause(bound); errors.Is(cause, errCannotRecord) {
		return cause
	}
	return err
}

const codeUnreadable = "unreadable"

type unreadable struct {
	msg            core.Message
	reason, detail string
	slice          workqueue.SliceID // zero if unknown
}

func asUnreadable(msg core.Message, err error) unreadable {
	bad, ok := errors.AsType[*wire.MalformedError](err)
	if !ok {
		bad = &wire.MalformedError{Reason: codeUnreadable, Detail: err.Error()}
	}
	return unreadable{msg, bad.Reason, bad.Detail, workqueue.SliceID(bad.Slice)}
}

// takeUnreadable fails the slice, so that its items continue in smaller ones, then quarantines the message. Repeating
// this after a crash is harmless.
func (r *Recorder) takeUnreadable(ctx context.Context, u unreadable) {
	if err := r.failUnreadable(ctx, u); err != nil && !workqueue.Refused(err) {
		r.node.Log.Error("cannot record that a reply is unreadable; giving it back", zap.Error(err))
		r.replies.Settle(u.msg, core.GiveBack)
		core.Signal(r.unrecorded)
		return
	}
	r.quarantine(ctx, u.msg, u.reason, u.detail, u.slice)
}

// failUnreadable records the failure of a slice, if the message came on the subject of the slice's endpoint.
func (r *Recorder) failUnreadable(ctx context.Context, u unreadable) error {
	if u.slice == (workqueue.SliceID{}) {
		return nil
	}
	endpoint, found := strings.CutPrefix(u.msg.Subject(), wire.ReplySubject(""))
	if !found {
		return nil
	}
	out, err := r.failures.Record(ctx, []settle.Answer{{Slice: u.slice, Endpoint: endpoint, Answered: -1,
		Service: u.msg.Headers().Get(wire.HeaderService), Unreadable: true,
		Failure: &workqueue.SlotError{Code: codeUnreadable, Retry: true,
			Message: "the service's reply could not be read (" + u.reason + "): " + u.detail}}})
	if err == nil {
		r.after.Seen(out, cameAt([]reading{{msg: u.msg}}))
	}
	return err
}
