package endpoints

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// TestSlowHandlersHoldFewLargeRequests has far more bytes wait than an instance should hold.
func TestSlowHandlersHoldFewLargeRequests(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc, g := b.service(), newGate(t)
	const slots, requests = 4, 40
	check(t, HandleList(svc, "large", func(_ context.Context, chunk *Chunk[string, square]) error {
		g.calls.Add(1)
		<-g.open
		for _, item := range chunk.Items() {
			item.Reply(square{})
		}
		return nil
	}, Concurrency(slots)))
	large := fmt.Appendf(nil, "%q", bytes.Repeat([]byte("x"), 1000_000))
	for range requests {
		builder := wire.NewRequestBuilder("large", newMeta(), int(b.nc.MaxPayload()))
		if !builder.Add(0, "k", large) {
			t.Fatal("it does not fit")
		}
		b.publish(builder.Msg())
	}
	b.Run(svc)
	eventually(t, "all slots are taken", func() bool { return g.calls.Load() == slots })
	room := svc.endpoints[0].Work.Room
	eventually(t, "it has fetched ahead", func() bool { return room.Len() == 2*slots })
	room.Mu.Lock()
	held := room.Bytes
	room.Mu.Unlock()
	if most := slots*int(b.nc.MaxPayload()) + serve.AheadBytes; held > most {
		t.Errorf("%d bytes are held; at most %d should be", held, most)
	}
	g.let()
	b.collect(requests)
}
