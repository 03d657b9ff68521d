package endpoints

import (
	"context"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// A result of the most bytes that fit a message stands in one; a byte more, and it comes in pieces.
func TestTheLargestResultThatFits(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *server.Options) { o.MaxPayload = 64 << 10 })
	serveList(b, "exact", func(_ context.Context, chunk *Chunk[number, any]) error {
		limit := chunk.job.Answers.Limit
		item := chunk.Items()[0]
		text := limit - len(`{"slots":[{"i":0,"d":""}]}`)
		bytes := (limit - len(`{"slots":[{"i":0,"t":"application/octet-stream","b":""}]}`)) / 4 * 3
		switch item.In.N {
		case 0, 1:
			item.Reply(strings.Repeat("x", text+item.In.N))
		default:
			item.Reply(wire.Binary{Data: make([]byte, bytes+item.In.N-2)})
		}
		return nil
	})
	for n, pieces := range []int{0, 1, 0, 1} {
		w := b.reply("exact", []payload{{0, numbers(4)[n].json}})
		if slot := w.slots[0]; slot.Err != nil || w.answered != 1 || len(w.slots) != 1 {
			t.Errorf("%d: %d slots, %v", n, len(w.slots), slot.Err)
		}
		if got := w.messages - 1; got != pieces {
			t.Errorf("%d came in %d messages beside the final one, want %d pieces", n, got, pieces)
		}
	}
}

// Results in pieces are held like others: a transaction that fails takes them back, and one that succeeds sends them in
// their order among the others.
func TestLargeResultsAreHeld(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *server.Options) { o.MaxPayload = 64 << 10 })
	svc := b.service()
	text := func(n int) string { return strings.Repeat("x", 10+n%2*200_000) }
	seen := make(chan []wire.Slot, 2)
	for endpoint, outcome := range map[string]error{"kept": nil, "dropped": Fail("rolled_back", "it was")} {
		check(t, HandleList(svc, endpoint, each(func(item *Item[number, string]) { item.Reply(text(item.In.N)) }), Wrap(func(ctx context.Context, w *Work, next func(context.Context) error) error {
			w.Hold()
			if err := next(ctx); err != nil {
				return err
			}
			slots, err := w.Answers()
			check(t, err)
			seen <- slots
			return outcome
		})))
	}
	b.Run(svc)
	kept := b.reply("kept", numbers(4))
	for n := range 4 {
		if got := len(kept.slots[n].Data); got != len(text(n))+2 || kept.slots[n].Err != nil {
			t.Errorf("item %d has %d bytes, %v", n, got, kept.slots[n].Err)
		}
	}
	for n, slot := range await(t, "the held answers", seen) {
		if slot.Ordinal != n || len(slot.Data) != len(text(n))+2 || slot.ContentType != "" {
			t.Errorf("held answer %d is that of item %d, with %d bytes of %q", n, slot.Ordinal, len(slot.Data),
				slot.ContentType)
		}
	}
	dropped := b.reply("dropped", numbers(4))
	if len(dropped.slots) != 0 || dropped.failure == nil || dropped.messages != 1 {
		t.Errorf("of what was taken back %d messages came, with %d slots", dropped.messages, len(dropped.slots))
	}
}
