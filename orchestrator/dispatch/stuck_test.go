package dispatch_test

import (
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// An endpoint that cannot be published to, since someone else's consumer stands in its way, holds up no other. Once
// the obstacle is gone its run goes on by itself, and none of its items is to blame.
func TestEndpointInTheWayHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	b := setup(t)
	js := b.JS(t)
	const obstacle = "somebody"
	if _, err := js.CreateConsumer(t.Context(), wire.StreamWork, jetstream.ConsumerConfig{Durable: obstacle,
		FilterSubject: wire.WorkSubject("other"), AckPolicy: jetstream.AckExplicitPolicy}); err != nil {
		t.Fatal(err)
	}
	first := nodetest.Small("other")
	first.Priority, first.Steps[0].MaxAttempts = 1, 1
	blocked := b.Start(t, first, nodetest.Size)
	nodetest.Until(t, "slices could not be published", func() bool { return b.Node.Stats().Postponed > 0 })
	l := nodetest.NewLedger(0)
	b.Serve(t, "statement", l.Handle)
	free := b.Start(t, nodetest.Patient(), nodetest.Size)
	b.WantSound(t, l, free, nodetest.Size)
	testenv.NoError(t, js.DeleteConsumer(t.Context(), wire.StreamWork, obstacle))
	other := nodetest.NewLedger(0)
	b.Serve(t, "other", other.Handle)
	b.WantSound(t, other, blocked, nodetest.Size)
	other.WantOnce(t, blocked, nodetest.Size)
	if n := b.Node.Stats().Expired; n != 0 {
		t.Errorf("%d slices had to wait for their deadline", n)
	}
}
