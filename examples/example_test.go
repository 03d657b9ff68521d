package examples_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/embedded"
)

type order struct {
	Pieces int `json:"pieces"`
}

type price struct {
	Cents int `json:"cents"`
}

// A service prices orders, a chunk of them at a time. The rest of the example is what a node does: it sends a request
// for one slice and reads the slots of the reply.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	nc, stop := connect(ctx)
	defer stop()

	svc, err := endpoints.New(nc, endpoints.Config{Name: "prices"})
	must(err)
	must(endpoints.HandleList(svc, "price", func(_ context.Context, chunk *endpoints.Chunk[order, price]) error {
		for _, item := range chunk.Items() {
			if item.In.Pieces == 0 {
				item.Fail("empty_order", "%s orders nothing", item.Key)
				continue
			}
			item.Reply(price{Cents: 250 * item.In.Pieces})
		}
		return nil
	}))
	ended := make(chan error, 1)
	serving, end := context.WithCancel(ctx)
	go func() { ended <- svc.Run(serving) }()

	for _, slot := range ask(ctx, nc) {
		if slot.Err != nil {
			fmt.Println(slot.Ordinal, slot.Err.Code+":", slot.Err.Message)
			continue
		}
		fmt.Println(slot.Ordinal, string(slot.Data))
	}
	end()
	must(<-ended)
	// Output:
	// 0 {"cents":750}
	// 1 empty_order: ORDER-2 orders nothing
	// 2 {"cents":250}
}

func ask(ctx context.Context, nc *nats.Conn) []wire.Slot {
	js, err := jetstream.New(nc)
	must(err)
	_, err = stream.Ensure(ctx, js, stream.Config{})
	must(err)
	must(stream.EnsureConsumer(ctx, js, "price", stream.ConsumerSettings{}))
	replies, err := stream.EnsureRecorder(ctx, js)
	must(err)

	meta := wire.Meta{Run: uuid.New(), Slice: uuid.New(), Attempt: 1, Generation: 1, Mode: wire.ModeBatch}
	request := wire.NewRequestBuilder("price", meta, int(nc.MaxPayload()))
	for i, pieces := range []int{3, 0, 1} {
		request.Add(i, fmt.Sprintf("ORDER-%d", i+1), fmt.Appendf(nil, `{"pieces":%d}`, pieces))
	}
	_, err = js.PublishMsg(ctx, request.Msg())
	must(err)

	msg, err := replies.Next(jetstream.FetchContext(ctx))
	must(err)
	reply, err := wire.ParseReply(msg.Subject(), msg.Headers(), msg.Data(), wire.Limits{})
	must(err)
	return reply.Slots
}

// connect starts a NATS server of the example's own.
func connect(ctx context.Context) (nc *nats.Conn, stop func()) {
	dir, err := os.MkdirTemp("", "tranche-example-")
	must(err)
	server, err := embedded.StartNATS(ctx, embedded.NATSConfig{StoreDir: dir, Listen: "127.0.0.1:0"})
	must(err)
	nc, err = nats.Connect(server.URL(), nats.Timeout(time.Minute))
	must(err)
	return nc, func() {
		nc.Close()
		must(server.Stop(context.WithoutCancel(ctx)))
		must(os.RemoveAll(dir))
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
