package deadletter

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/orchestrator/endpoint"
)

// sweepBatch bounds the messages that one sweep removes for one consumer.
const sweepBatch = 100

// settledMark says up to where a consumer had nothing left to deliver or to wait for, and of which incarnation of it.
type settledMark struct {
	stream, consumer time.Time // when they were made
	upTo             uint64
}

// ExhaustedSweep finds messages that are delivered no more and of which no advisory was heard. It is for one goroutine.
type ExhaustedSweep struct {
	*Letters

	marks map[string]settledMark // by stream and consumer, of the sweep before
}

// Sweeping returns one that begins.
func (l *Letters) Sweeping() *ExhaustedSweep { return &ExhaustedSweep{Letters: l} }

// Forget begins anew.
func (s *ExhaustedSweep) Forget() { s.marks = nil }

// Sweep looks for messages that lie in a stream although its consumer is done with them. A consumer is done
// with what lies at or below its acknowledgement floor and, when it waits for no acknowledgement, with everything that
// it has delivered; what is acknowledged leaves the stream. Messages count only when they are there still at the sweep
// after: an acknowledgement and its removal are not one step.
func (s *ExhaustedSweep) Sweep(ctx context.Context, all []endpoint.ConsumersOf) error {
	marks := make(map[string]settledMark, len(s.marks))
	var failed error
	for _, of := range all {
		for name, info := range of.Consumers {
			key := of.Name + " " + name
			mark := settledMark{of.Made, info.Created, info.AckFloor.Stream}
			if info.NumAckPending == 0 {
				mark.upTo = max(mark.upTo, info.Delivered.Stream)
			}
			marks[key] = mark
			before := s.marks[key]
			if !before.stream.Equal(mark.stream) || !before.consumer.Equal(mark.consumer) ||
				of.Held[name] <= info.NumPending+uint64(info.NumAckPending) {
				continue
			}
			failed = errors.Join(failed, s.sweepConsumer(ctx, of, info, min(before.upTo, mark.upTo)))
		}
	}
	s.marks = marks
	return failed
}

// sweepConsumer gives up what lies in a stream for a consumer up to a place.
func (l *Letters) sweepConsumer(
	ctx context.Context, of endpoint.ConsumersOf, info *jetstream.ConsumerInfo, upTo uint64,
) error {
	for next, i := of.First, 0; next <= upTo && i < sweepBatch; i++ {
		msg, err := of.Stream.GetMsg(ctx, next, jetstream.WithGetMsgSubject(info.Config.FilterSubject))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("look for messages of consumer %s: %w", info.Name, err)
		}
		if msg.Sequence > upTo {
			return nil
		}
		next = msg.Sequence + 1
		l.node.Log.Debug("found a message that is delivered no more", zap.String("stream", of.Name),
			zap.Uint64("sequence", msg.Sequence))
		err = l.giveUp(ctx, exhaustion{Stream: of.Name, Consumer: info.Name, Sequence: msg.Sequence,
			Deliveries: info.Config.MaxDeliver, Timestamp: msg.Time})
		if err != nil {
			return err
		}
	}
	return nil
}
