package endpoints

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// replicated is setup on three servers, with three replicas of everything.
func replicated(t *testing.T) *bundle {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), allPatience)
	t.Cleanup(cancel)
	b := newBundle(t, ctx)
	b.url = testenv.NATSCluster(t).URLs()[0]
	b.nc = b.connect()
	js, err := jetstream.New(b.nc)
	check(t, err)
	b.js = js
	b.streamsWith(stream.Config{Replicas: 3})
	return b
}

// TestReplicatedConsumersLoseNothing has servers send messages after the word that a pull is over. What is lost comes
// again after an AckWait. So does what a machine that stood still did not acknowledge, or delivered under a leader that
// the others lost: that is no fault.
func TestReplicatedConsumersLoseNothing(t *testing.T) {
	t.Parallel()
	b := replicated(t)
	svc := b.service()
	big := strings.Repeat("x", 60_000)
	check(t, HandleEach(svc, "square", squares, Concurrency(8)))
	check(t, stream.EnsureConsumer(b.ctx, b.js, "square", stream.ConsumerSettings{}))
	const chunks = 400
	for range chunks {
		b.ask("square", []payload{{0, `{"n":3,"pad":"` + big + `"}`}})
	}
	start, watch := time.Now(), testenv.NewWatch(t)
	b.Run(svc)
	b.collect(chunks)
	took := time.Since(start)
	eventually(t, "all is acknowledged", func() bool { return b.backlog("square") == 0 })
	consumer, err := b.js.Consumer(b.ctx, wire.StreamWork, wire.ConsumerName("square"))
	check(t, err)
	info := consumer.CachedInfo()
	stood := watch.Longest() > stream.AckTimeout/2
	if again := int(info.Delivered.Consumer) - chunks; again > b.unacknowledged() && !stood {
		t.Errorf("%d messages were delivered again", again)
	}
	if info.Cluster == nil || len(info.Cluster.Replicas) != 2 {
		t.Errorf("the consumer is not replicated: %+v", info.Cluster)
	}
	t.Logf("%d chunks in %s; it stood still for %s at the longest", chunks, took, watch.Longest())
}

// unacknowledged is how often services could not acknowledge in time what they had dealt with.
func (b *bundle) unacknowledged() int {
	return b.logged.FilterMessageSnippet("could not acknowledge a request").Len()
}
