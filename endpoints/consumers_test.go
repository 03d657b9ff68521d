package endpoints

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"
)

// TestConsumerOfAServiceIsKept has a service make its consumer with what JetStream cannot change later.
func TestConsumerOfAServiceIsKept(t *testing.T) {
	t.Parallel()
	b := setup(t)
	_, err := b.js.CreateConsumer(b.ctx, StreamWork, jetstream.ConsumerConfig{
		Durable: "square", FilterSubject: WorkSubject("square"), AckPolicy: jetstream.AckExplicitPolicy, MaxWaiting: 7,
	})
	check(t, err)
	check(t, EnsureConsumer(b.ctx, b.js, "square", ConsumerSettings{Concurrency: 3}))
	consumer, err := b.js.Consumer(b.ctx, StreamWork, "square")
	check(t, err)
	info := consumer.CachedInfo()
	if c := info.Config; c.MaxWaiting != 7 || c.AckWait != AckWait || c.MaxDeliver != MaxDeliver {
		t.Errorf("config %+v", c)
	}
	if got := SettingsOf(info); got.Concurrency != 3 {
		t.Errorf("settings %+v", got)
	}
}

func TestConsumerThatLosesWhatItDeliversIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	// A work queue takes no other consumer than an explicit one; the stream of states would.
	_, err := b.js.CreateConsumer(b.ctx, StreamEvent, jetstream.ConsumerConfig{
		Durable: "square", AckPolicy: jetstream.AckNonePolicy,
	})
	check(t, err)
	if _, err := ensureDurable(b.ctx, b.js, StreamEvent, consumerConfig("square", EventSubject(">"))); err == nil {
		t.Error("a consumer that acknowledges nothing is taken")
	}
}
