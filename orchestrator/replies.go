package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints"
)

const (
	pullExpiry   = 5 * time.Second
	drainTimeout = 2 * time.Second
	// rebindPause is the least time between two bindings of the reply consumer.
	rebindPause = 200 * time.Millisecond
)

// nextReply is what a node publishes to get replies.
const nextReply = "$JS.API.CONSUMER.MSG.NEXT." + endpoints.StreamReply + "." + endpoints.RecorderConsumer

// errCannotRecord ends the reading of replies while they cannot be recorded.
var errCannotRecord = errors.New("replies cannot be recorded")

// feed reads replies until ctx ends, and binds again whenever the stream or its consumer is lost.
func (n *Node) feed(ctx context.Context, replies chan<- fetched) {
	for ctx.Err() == nil {
		err := n.readReplies(ctx, replies)
		switch {
		case errors.Is(err, errCannotRecord):
			_ = n.retry(ctx, "reach PostgreSQL to record replies", n.store.Ping) // fails only when ctx has ended
		case err != nil && ctx.Err() == nil:
			err = endpoints.PermissionsOf(n.nc).Explain(err, nextReply)
			n.log.Warn("read replies", zap.Error(err))
			n.Look()
		}
		sleep(ctx, rebindPause)
	}
}

// readReplies binds to the reply consumer and feeds the recorders until ctx ends or the streams change.
func (n *Node) readReplies(ctx context.Context, replies chan<- fetched) error {
	_, changed := n.pipe.now()
	consumer, made, err := n.bind(ctx, &n.recorder, endpoints.EnsureRecorder)
	if err != nil {
		return err
	}
	broken := make(chan error, 1)
	bound, unbind := context.WithCancel(ctx)
	defer unbind()
	reading, err := consumer.Consume(func(msg jetstream.Msg) {
		select {
		case replies <- fetched{msg, made}:
		case <-bound.Done():
			n.settle(fetched{msg, made}, jetstream.Msg.Nak) // another node may have it at once
		}
	}, jetstream.PullMaxBytes(max(recordBytes, 2*int(n.nc.MaxPayload()))), jetstream.PullExpiry(pullExpiry),
		jetstream.ConsumeErrHandler(func(_ jetstream.ConsumeContext, err error) {
			if bindingLost(err) {
				select {
				case broken <- err:
				default:
				}
			}
		}))
	if err != nil {
		return fmt.Errorf("read replies: %w", err)
	}
	defer func() {
		reading.Stop()
		<-reading.Closed() // the callback is done with the channel
	}()
	select {
	case <-ctx.Done():
		giveUpReading(unbind, reading)
		return nil
	case <-changed:
		return nil
	case <-reading.Closed():
		return errors.New("the subscription ended")
	case err := <-broken:
		return err
	case <-n.unrecorded:
		giveUpReading(unbind, reading)
		return errCannotRecord
	}
}

// giveUpReading sends what was fetched ahead through the callback and so back to the stream.
func giveUpReading(unbind func(), reading jetstream.ConsumeContext) {
	unbind()
	reading.Drain()
	select {
	case <-reading.Closed():
	case <-time.After(drainTimeout):
	}
}

// bindingLost tells the errors after which a subscription gets no more messages from those it survives by itself.
func bindingLost(err error) bool {
	return errors.Is(err, jetstream.ErrConsumerDeleted) || errors.Is(err, jetstream.ErrConsumerNotFound) ||
		errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrNoHeartbeat)
}
