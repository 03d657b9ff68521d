package endpointstest

import (
	"context"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// DeadLetter returns the next dead letter, of any endpoint, as soon as there is one, and takes it off the stream. It
// ends the test when none comes. Services write dead letters for requests of [wire.ModeSingle] only.
func (k *Kit) DeadLetter() wire.DeadLetter {
	k.t.Helper()
	ctx, cancel := k.own()
	defer cancel()
	reader, err := stream.EnsureDeadLetterReader(ctx, k.js)
	if err != nil {
		k.t.Fatalf("endpointstest: %v", err)
	}
	waiting, stop := context.WithTimeout(k.ctx, k.patience)
	defer stop()
	msg, err := reader.Next(jetstream.FetchContext(waiting))
	if err != nil {
		k.t.Fatalf("endpointstest: in %s there was no dead letter: %v", k.patience, err)
	}
	letter, err := wire.ParseDeadLetter(msg.Subject(), msg.Headers(), msg.Data())
	if err != nil {
		k.t.Fatalf("endpointstest: a dead letter on %s cannot be read: %v", msg.Subject(), err)
	}
	acking, acked := k.own()
	defer acked()
	if err := msg.DoubleAck(acking); err != nil {
		k.t.Fatalf("endpointstest: take a dead letter off its stream: %v", err)
	}
	return letter
}
