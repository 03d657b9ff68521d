package endpoints

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/errgroup"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/endpoints/internal/outbox"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
)

const (
	// callWindow is how many requests of one call may be without their answers; directWindow that over core NATS, where a
	// service answers what is too much for it with an error.
	callWindow   = 16
	directWindow = 4
	// missingPatience is how long a stream may be missing: one that was lost is made anew at once.
	missingPatience = time.Second
)

// publishAll cuts the items into requests and publishes these, some at once. It returns when the last is on its way.
func (c *call) publishAll(
	ctx context.Context, group *errgroup.Group, cancel context.CancelCauseFunc, item func(n int) (string, any),
) {
	size := callWindow
	if c.js == nil {
		size = directWindow
	}
	window := make(chan struct{}, size)
	var payload bytes.Buffer
	for n, items := 0, len(c.box.answered); n < items; {
		select {
		case window <- struct{}{}:
		case <-ctx.Done():
			return
		}
		first := n
		var msg *nats.Msg
		var slice uuid.UUID
		msg, slice, n = c.cut(n, items, &payload, item)
		if msg == nil { // none of its items can be sent
			<-window
			continue
		}
		c.box.expect(slice, first, n, func() { <-window })
		group.Go(func() error {
			err := c.publish(ctx, msg)
			if err != nil {
				cancel(err)
			}
			return err
		})
	}
}

// cut writes one request for the items from n on, and returns the first item that is not in it. Items that cannot be
// sent are answered at once; msg is nil when there is no other.
func (c *call) cut(
	n, items int, payload *bytes.Buffer, item func(n int) (string, any),
) (msg *nats.Msg, slice uuid.UUID, next int) {
	meta := c.meta
	meta.Slice = uuid.New()
	b := wire.NewRequestBuilder(c.endpoint, meta, int(c.nc.MaxPayload())-wire.HeaderSize(c.trace))
	b.SetParams(c.params)
	for ; n < items && b.Len() < bitfield.Size; n++ {
		key, in := item(n)
		payload.Reset()
		if err := wire.EncodePayload(payload, in); err != nil {
			c.box.fail(n, wire.NewSlotError(wire.CodeBadQuery,
				fmt.Sprintf("the question to %s cannot be written: %v", c.endpoint, err),
				false))
			continue
		}
		if b.Add(n, key, payload.Bytes()) {
			continue
		}
		if b.Len() > 0 {
			break
		}
		c.box.fail(n, wire.NewSlotError(wire.CodeQueryTooLarge,
			fmt.Sprintf("the question to %s takes %d bytes, which does not fit a "+
				"message; raise the NATS server's max_payload (16 MiB count) or ask with where the data is", c.endpoint,
				payload.Len()), false))
	}
	if b.Len() == 0 {
		return nil, meta.Slice, n
	}
	return c.message(b), meta.Slice, n
}

// message completes a request.
func (c *call) message(b *wire.RequestBuilder) *nats.Msg {
	msg := b.Msg()
	maps.Copy(msg.Header, c.trace)
	msg.Subject = c.subject()
	if c.js == nil {
		msg.Reply = c.meta.ReplyTo.String() // where the server says that nobody listens
		return msg
	}
	msg.Header[wire.HeaderTTL] = []string{c.ttl} // so that nobody works for a caller who has gone
	return msg
}

// publish hands a request to the server. Through JetStream it tries until the request is acknowledged, under one id.
func (c *call) publish(ctx context.Context, msg *nats.Msg) error {
	if c.js == nil {
		if err := c.nc.PublishMsg(msg); err != nil {
			return fmt.Errorf("call endpoint %s: %w", c.endpoint, err)
		}
		return nil
	}
	var last error // that says more than that time is over
	begun := time.Now()
	pauses := backoff.Doubling{First: outbox.FirstPause, Longest: outbox.LongestPause}
	for {
		err := c.try(ctx, msg)
		if err == nil || errors.Is(ctx.Err(), context.Canceled) { // the call has ended
			return nil
		}
		if last == nil || ctx.Err() == nil && !errors.Is(err, context.DeadlineExceeded) {
			last = err
		}
		switch {
		case stream.Denied(err):
			return fmt.Errorf("call endpoint %s: %w", c.endpoint, err)
		case !mayBeTaken(err, time.Since(begun)) || pauses.Wait(ctx) != nil:
			return &RequestError{Endpoint: c.endpoint, Stream: wire.StreamWork, Err: last}
		}
	}
}

func (c *call) try(ctx context.Context, msg *nats.Msg) error {
	ctx, cancel := context.WithTimeout(ctx, stream.AckTimeout)
	defer cancel()
	return stream.During(ctx, c.nc, func(ctx context.Context) error {
		_, err := c.js.PublishMsg(ctx, msg, jetstream.WithRetryAttempts(0))
		return err
	}, msg.Subject)
}

// mayBeTaken reports whether a request that was refused may be taken if it is tried again.
func mayBeTaken(err error, tried time.Duration) bool {
	var api *jetstream.APIError
	switch {
	case outbox.Hopeless(err):
		return false
	case outbox.IsMissing(err):
		return tried < missingPatience
	case errors.As(err, &api):
		return api.ErrorCode == outbox.StreamFull || api.Code == 503
	default: // no acknowledgement came
		return true
	}
}
