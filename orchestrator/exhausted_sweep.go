package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// sweepBatch bounds the messages that one sweep removes for one consumer.
const sweepBatch = 100

// settledMark says up to where a consumer had nothing left to deliver or to wait for, and of which incarnation of it.
type settledMark struct {
	stream, consumer time.Time // when they were made
	upTo             uint64
}

// exhaustedSweep finds messages that are delivered no more and of which no advisory was heard. It is for one goroutine.
type exhaustedSweep struct {
	marks map[string]settledMark // by stream and consumer, of the sweep before
}

// sweepExhausted looks for messages that lie in a stream although its consumer is done with them. A consumer is done
// with what lies at or below its acknowledgement floor and, when it waits for no acknowledgement, with everything that
// it has delivered; what is acknowledged leaves the stream. Messages count only when they are there still at the sweep
// after: an acknowledgement and its removal are not one step.
func (n *Node) sweepExhausted(ctx context.Context, s *exhaustedSweep, all []consumersOf) error {
	marks := make(map[string]settledMark, len(s.marks))
	var failed error
	for _, of := range all {
		for name, info := range of.consumers {
			key := of.name + " " + name
			mark := settledMark{of.made, info.Created, info.AckFloor.Stream}
			if info.NumAckPending == 0 {
				mark.upTo = max(mark.upTo, info.Delivered.Stream)
			}
			marks[key] = mark
			before := s.marks[key]
			if !before.stream.Equal(mark.stream) || !before.consumer.Equal(mark.consumer) ||
				of.held[name] <= info.NumPending+uint64(info.NumAckPending) {
				continue
			}
			failed = errors.Join(failed, n.sweepConsumer(ctx, of, info, min(before.upTo, mark.upTo)))
		}
	}
	s.marks = marks
	return failed
}

// sweepConsumer gives up what lies in a stream for a consumer up to a place.
func (n *Node) sweepConsumer(ctx context.Context, of consumersOf, info *jetstream.ConsumerInfo, upTo uint64) error {
	for next, i := of.first, 0; next <= upTo && i < sweepBatch; i++ {
		msg, err := of.stream.GetMsg(ctx, next, jetstream.WithGetMsgSubject(info.Config.FilterSubject))
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
		n.log.Debug("found a message that is delivered no more", zap.String("stream", of.name),
			zap.Uint64("sequence", msg.Sequence))
		err = n.giveUp(ctx, exhaustion{Stream: of.name, Consumer: info.Name, Sequence: msg.Sequence,
			Deliveries: info.Config.MaxDeliver, Timestamp: msg.Time})
		if err != nil {
			return err
		}
	}
	return nil
}

// consumersOf is one stream and its consumers, as of about one moment.
type consumersOf struct {
	name      string
	stream    jetstream.Stream
	made      time.Time
	first     uint64            // sequence
	held      map[string]uint64 // messages in the stream, by the name of the consumer that they are for
	consumers map[string]*jetstream.ConsumerInfo
}

// look reads the consumers of ours that a stream has. Its messages are counted first: those that come in between are
// pending then, and do not look like left ones.
func (n *Node) look(ctx context.Context, name, subjects string, consumerOf func(subject string) string,
) (consumersOf, error) {
	of := consumersOf{name: name, held: map[string]uint64{}}
	stream, err := n.js.Stream(ctx, name)
	if err != nil {
		return of, fmt.Errorf("look at stream %s: %w", name, err)
	}
	info, err := stream.Info(ctx, jetstream.WithSubjectFilter(subjects))
	if err != nil {
		return of, fmt.Errorf("look at stream %s: %w", name, err)
	}
	of.stream, of.made, of.first = stream, info.Created, info.State.FirstSeq
	for subject, count := range info.State.Subjects {
		of.held[consumerOf(subject)] += count
	}
	of.consumers, err = consumers(ctx, stream, consumerOf)
	return of, err
}

// consumers reads the consumers of ours that a stream has, by their names. With an error it returns what it has read.
func consumers(ctx context.Context, stream jetstream.Stream, consumerOf func(subject string) string,
) (map[string]*jetstream.ConsumerInfo, error) {
	of := map[string]*jetstream.ConsumerInfo{}
	list := stream.ListConsumers(ctx)
	for info := range list.Info() {
		if info.Config.Durable == info.Name && wire.ValidateName(endpointOf(info.Name)) == nil &&
			consumerOf(info.Config.FilterSubject) == info.Name {
			of[info.Name] = info
		}
	}
	if err := list.Err(); err != nil {
		return of, fmt.Errorf("list the consumers of stream %s: %w", stream.CachedInfo().Config.Name, err)
	}
	return of, nil
}
