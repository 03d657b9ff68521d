package endpoints

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// TestConsumerOfAServiceIsKept has a service make its consumer with what JetStream cannot change later.
func TestConsumerOfAServiceIsKept(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, err := b.js.CreateConsumer(b.ctx, wire.StreamWork, jetstream.ConsumerConfig{
		Durable: "square", FilterSubject: wire.WorkSubject("square"), AckPolicy: jetstream.AckExplicitPolicy, MaxWaiting: 7,
	})
	check(t, err)
	check(t, stream.EnsureConsumer(b.ctx, b.js, "square", stream.ConsumerSettings{Concurrency: 3}))
	consumer, err := b.js.Consumer(b.ctx, wire.StreamWork, "square")
	check(t, err)
	info := consumer.CachedInfo()
	if c := info.Config; c.MaxWaiting != 7 || c.AckWait != stream.AckWait || c.MaxDeliver != wire.MaxDeliver {
		t.Errorf("config %+v", c)
	}
	if got := stream.SettingsOf(info); got.Concurrency != 3 {
		t.Errorf("settings %+v", got)
	}
}

func TestConsumerThatLosesWhatItDeliversIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	// A work queue takes no other consumer than an explicit one; the stream of states would.
	_, err := b.js.CreateConsumer(b.ctx, wire.StreamEvent, jetstream.ConsumerConfig{
		Durable: "square", AckPolicy: jetstream.AckNonePolicy,
	})
	check(t, err)
	if _, err := stream.EnsureDurable(b.ctx, b.js, wire.StreamEvent,
		stream.ConsumerConfig("square", wire.EventSubject(">"))); err == nil {
		t.Error("a consumer that acknowledges nothing is taken")
	}
}
