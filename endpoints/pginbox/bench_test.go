package pginbox_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/endpointstest"
	"github.com/tranchehq/tranche/endpoints/pginbox"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// BenchmarkOnce measures what the inbox adds to a chunk of 500: "plain" has a handler that does nothing, "first" has it
// within the inbox, and "again" is answered from memory.
func BenchmarkOnce(b *testing.B) {
	pool := testenv.Connect(b, testenv.EmptyDatabase(b))
	inbox := testenv.Must(pginbox.New(pool, pginbox.Config{}))(b)
	testenv.NoError(b, inbox.Create(b.Context()))
	kit := endpointstest.New(b)
	answer := func(_ context.Context, c *chunk) error {
		for _, item := range c.Items() {
			item.Reply(item.In)
		}
		return nil
	}
	kit.Serve(func(svc *endpoints.Service) error {
		if err := endpoints.HandleList(svc, "plain", answer); err != nil {
			return err
		}
		return endpoints.HandleList(svc, "inbox", answer, endpoints.Wrap(inbox.Once()))
	})
	const size = 500
	parts := make([]endpointstest.Part, size)
	for i := range parts {
		parts[i] = endpointstest.Item(fmt.Sprintf("KEY-%d", i), "a result of about as many bytes as results have")
	}
	known := kit.Send("inbox", parts...).Request
	for name, send := range map[string]func() *endpointstest.Reply{
		"plain": func() *endpointstest.Reply { return kit.Send("plain", parts...) },
		"first": func() *endpointstest.Reply { return kit.Send("inbox", parts...) },
		"again": func() *endpointstest.Reply { return kit.Redeliver(known) },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if reply := send(); len(reply.Slots) != size {
					b.Fatalf("%d slots, failure %v", len(reply.Slots), reply.Failure)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/size, "ns/item")
		})
	}
}
