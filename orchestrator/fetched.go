package orchestrator

import (
	"context"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
)

// fetched is a reply or a dead letter in a node's hands.
type fetched struct {
	jetstream.Msg
	made time.Time // when the consumer that delivered it was made
}

// bind creates or finds a consumer of nodes, and returns when it was made.
func (n *Node) bind(
	ctx context.Context, known *stream.Incarnation,
	ensure func(context.Context, jetstream.JetStream) (jetstream.Consumer, error),
) (made time.Time, err error) {
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	asked := time.Now()
	if _, err := ensure(ctx, n.js); err != nil {
		return time.Time{}, err
	}
	// Asked for, not taken from the answer above: after a restart the server gives another time there.
	if made, err = known.Ask(ctx); err != nil {
		return time.Time{}, err
	}
	known.Learn(asked, made)
	return made, nil
}

// whenMade returns a question to the server: when was the consumer made?
func (n *Node) whenMade(stream, name string) func(context.Context) (time.Time, error) {
	return func(ctx context.Context) (time.Time, error) {
		consumer, err := n.js.Consumer(ctx, stream, name)
		if err != nil {
			return time.Time{}, err
		}
		return consumer.CachedInfo().Created, nil
	}
}

// settle acknowledges a reply, or gives it back, unless the consumer that delivered it is no more: then the sequence
// may belong to another reply. What is not acknowledged is delivered again, which is harmless.
func (n *Node) settle(f fetched, how func(jetstream.Msg) error) { n.settleOf(&n.recorder, f, how) }

// settleOf is settle for a message of another consumer.
func (n *Node) settleOf(consumer *stream.Incarnation, f fetched, how func(jetstream.Msg) error) {
	if !consumer.Current().Equal(f.made) {
		n.log.Debug("left a message of an earlier stream alone", zap.String("subject", f.Subject()))
		return
	}
	if err := how(f.Msg); err != nil {
		n.log.Debug("acknowledge", zap.String("subject", f.Subject()), zap.Error(err))
	}
}

// giveBack lets a reply rest before any node may try again.
func giveBack(msg jetstream.Msg) error { return msg.NakWithDelay(nakDelay) }
