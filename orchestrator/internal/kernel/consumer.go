package kernel

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
)

// Message is a reply or a dead letter in a node's hands.
type Message struct {
	jetstream.Msg
	Made time.Time // when the consumer that delivered it was made
}

// SharedConsumer is a consumer that all nodes read from.
type SharedConsumer struct {
	node   *Kernel
	known  stream.Incarnation
	ensure func(context.Context, jetstream.JetStream) (jetstream.Consumer, error)
}

// NewShared is a consumer of a stream, which ensure creates or finds.
func NewShared(k *Kernel, stream, name string,
	ensure func(context.Context, jetstream.JetStream) (jetstream.Consumer, error),
) *SharedConsumer {
	s := &SharedConsumer{node: k, ensure: ensure}
	s.known.Ask = func(ctx context.Context) (time.Time, error) { // when was it made?
		consumer, err := k.JS.Consumer(ctx, stream, name)
		if err != nil {
			return time.Time{}, err
		}
		return consumer.CachedInfo().Created, nil
	}
	return s
}

// Bind creates or finds the consumer, and returns when it was made.
func (s *SharedConsumer) Bind(ctx context.Context) (made time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, LookTimeout)
	defer cancel()
	asked := time.Now()
	if _, err := s.ensure(ctx, s.node.JS); err != nil {
		return time.Time{}, err
	}
	// Asked for, not taken from the answer above: after a restart the server gives another time there.
	if made, err = s.known.Ask(ctx); err != nil {
		return time.Time{}, err
	}
	s.known.Learn(asked, made)
	return made, nil
}

// Settle acknowledges a message, or gives it back, unless the consumer that delivered it is no more: then the sequence
// may belong to another one. What is not acknowledged is delivered again, which is harmless.
func (s *SharedConsumer) Settle(f Message, how func(jetstream.Msg) error) {
	if !s.known.Current().Equal(f.Made) {
		s.node.Log.Debug("left a message of an earlier stream alone", zap.String("subject", f.Subject()))
		return
	}
	if err := how(f.Msg); err != nil {
		s.node.Log.Debug("acknowledge", zap.String("subject", f.Subject()), zap.Error(err))
	}
}

// GiveBack lets a reply rest before any node may try again.
func GiveBack(msg jetstream.Msg) error { return msg.NakWithDelay(nakDelay) }

// nakDelay is how long a message that could not be recorded rests before any node may try again.
const nakDelay = time.Second
