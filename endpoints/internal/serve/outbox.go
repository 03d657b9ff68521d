package serve

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/semaphore"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
)

const (
	// outboxBytes bounds the replies of a service that JetStream has not acknowledged. A stream takes 128 MiB in all.
	outboxBytes = 16 << 20
	// replyTimeout is how long a reply is tried before its request is handed back.
	replyTimeout = 30 * time.Second
	// DeniedTimeout is how long NATS may deny it: permissions that are reloaded may be gone for a moment.
	DeniedTimeout = time.Second
	// FirstPause and LongestPause are between two tries to send a reply.
	FirstPause = 25 * time.Millisecond
	// LongestPause is the longest of them.
	LongestPause = 500 * time.Millisecond
)

// Outbox publishes replies: each is tried, under one Nats-Msg-Id, until JetStream has acknowledged it, so that a
// publish whose outcome is unknown is not stored twice. What goes to a caller who waits is not stored at all.
type Outbox struct {
	NC    *nats.Conn
	JS    jetstream.JetStream
	room  *semaphore.Weighted
	Perms *stream.Permissions
}

// NewOutbox returns an outbox that has nothing in it.
func NewOutbox(nc *nats.Conn, js jetstream.JetStream) *Outbox {
	return &Outbox{NC: nc, JS: js, room: semaphore.NewWeighted(outboxBytes), Perms: stream.PermissionsOf(nc)}
}

// Reserve waits for room for n bytes. The room is given back by release.
func (o *Outbox) Reserve(ctx context.Context, n int) error {
	return o.room.Acquire(ctx, int64(min(n, outboxBytes)))
}

// Release gives back what so many bytes of a reply have taken.
func (o *Outbox) Release(n int) { o.room.Release(int64(min(n, outboxBytes))) }

// Publish returns when JetStream has acknowledged msg, or when it cannot be had to within replyTimeout.
func (o *Outbox) Publish(ctx context.Context, msg *nats.Msg) error {
	ctx, cancel := context.WithTimeout(ctx, replyTimeout)
	defer cancel()
	begun := time.Now()
	pauses := backoff.Exponential{First: FirstPause, Longest: LongestPause}
	for {
		err := o.Try(ctx, msg)
		if err == nil {
			return nil
		}
		if Hopeless(err) || stream.Denied(err) && time.Since(begun) > DeniedTimeout || pauses.Wait(ctx) != nil {
			return fmt.Errorf("publish reply %s: %w", msg.Subject, err)
		}
	}
}

// Try sends a reply once, and waits until the stream has it.
func (o *Outbox) Try(ctx context.Context, msg *nats.Msg) error {
	if strings.HasPrefix(msg.Subject, wire.CallPrefix) {
		return o.NC.PublishMsg(msg)
	}
	ctx, cancel := context.WithTimeout(ctx, stream.AckTimeout)
	defer cancel()
	return o.Perms.During(ctx, func(ctx context.Context) error {
		_, err := o.JS.PublishMsg(ctx, msg, jetstream.WithRetryAttempts(0))
		return err
	}, msg.Subject)
}

// Hopeless reports whether the same message can never be taken. Anything else passes: a full stream is emptied, a
// missing one is made again, a server comes back.
func Hopeless(err error) bool {
	return errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, jetstream.ErrStreamMessageExceedsMaximum) ||
		errors.Is(err, nats.ErrConnectionClosed)
}

// IsMissing reports whether no stream takes a subject.
func IsMissing(err error) bool {
	return errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrNoResponders)
}

// StreamFull is JetStream's code for a stream that refuses a message for its size.
const StreamFull jetstream.ErrorCode = 10077
