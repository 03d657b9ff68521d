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
	// outboxBytes bounds the unacknowledged bytes of a service's replies. A stream takes 128 MiB in all.
	outboxBytes = 16 << 20
	// replyTimeout is how long a reply is retried before its request is returned for redelivery.
	replyTimeout = 30 * time.Second
	// DeniedTimeout is how long NATS may deny a permission; it may be missing briefly during a reload.
	DeniedTimeout = time.Second
	// FirstPause is the first pause between attempts to publish.
	FirstPause = 25 * time.Millisecond
	// LongestPause caps the pause, which doubles.
	LongestPause = 500 * time.Millisecond
)

// Outbox publishes replies. It retries under one Nats-Msg-Id until JetStream acknowledges, so that a publish with
// unknown outcome is not stored twice. Replies to callers are not stored at all.
type Outbox struct {
	NC    *nats.Conn
	JS    jetstream.JetStream
	room  *semaphore.Weighted
	Perms *stream.Permissions
}

// NewOutbox returns an empty outbox.
func NewOutbox(nc *nats.Conn, js jetstream.JetStream) *Outbox {
	return &Outbox{NC: nc, JS: js, room: semaphore.NewWeighted(outboxBytes), Perms: stream.PermissionsOf(nc)}
}

// Reserve waits for capacity for n bytes, to be released by Release.
func (o *Outbox) Reserve(ctx context.Context, n int) error {
	return o.room.Acquire(ctx, int64(min(n, outboxBytes)))
}

// Release frees the capacity of n bytes.
func (o *Outbox) Release(n int) { o.room.Release(int64(min(n, outboxBytes))) }

// Publish returns once JetStream has acknowledged msg, or fails after replyTimeout.
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

// Try publishes a reply once and waits for the acknowledgement.
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

// Hopeless reports whether a message can never be accepted, unlike when a stream is full or a server down.
func Hopeless(err error) bool {
	return errors.Is(err, nats.ErrMaxPayload) || errors.Is(err, jetstream.ErrStreamMessageExceedsMaximum) ||
		errors.Is(err, nats.ErrConnectionClosed)
}

// IsMissing reports whether no stream accepts the subject.
func IsMissing(err error) bool {
	return errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, nats.ErrNoResponders)
}

// StreamFull is the JetStream error code of a full stream.
const StreamFull jetstream.ErrorCode = 10077
