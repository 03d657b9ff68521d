package endpoints_test

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

type Account struct {
	Balance int `json:"balance"`
}

type Statement struct {
	Closing int    `json:"closing"`
	For     string `json:"for"`
}

// serve is a whole service: what its main would do.
func serve(ctx context.Context) error {
	nc, err := endpoints.Connect()
	if err != nil {
		return err
	}
	defer nc.Close()
	svc, err := endpoints.New(nc, endpoints.Config{Name: "statements", Version: "1.0.0"})
	if err != nil {
		return err
	}
	err = endpoints.HandleEach(svc, "statement", func(ctx context.Context, a Account) (Statement, error) {
		if a.Balance < 0 {
			return Statement{}, endpoints.Fail("overdrawn", "the balance is %d", a.Balance)
		}
		return Statement{Closing: a.Balance, For: endpoints.ItemOf(ctx).Key}, nil
	}, endpoints.Concurrency(16))
	if err != nil {
		return err
	}
	return svc.Run(ctx)
}

func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	js, stop := node(ctx)
	defer stop()
	serving, end := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- serve(serving) }()

	request := wire.NewRequestBuilder("statement",
		wire.Meta{Run: uuid.New(), Slice: uuid.New(), Attempt: 1, Generation: 1}, 1<<20)
	request.Add(17, "CUST-18", []byte(`{"balance":120}`))
	request.Add(18, "CUST-19", []byte(`{"balance":-3}`))
	_, err := js.PublishMsg(ctx, request.Msg())
	must(err)

	replies, err := stream.EnsureRecorder(ctx, js)
	must(err)
	msg, err := replies.Next()
	must(err)
	reply, err := wire.ParseReply(msg.Subject(), msg.Headers(), msg.Data(), wire.Limits{})
	must(err)
	must(msg.Ack())
	for _, slot := range reply.Slots {
		if slot.Err != nil {
			fmt.Println(slot.Ordinal, "failed:", slot.Err)
		} else {
			fmt.Println(slot.Ordinal, string(slot.Data))
		}
	}
	end()
	fmt.Println("stopped:", <-done)
	// Unordered output:
	// 17 {"closing":120,"for":"CUST-18"}
	// 18 failed: overdrawn: the balance is -3
	// stopped: <nil>
}

// node starts a NATS server, points NATS_URL at it, and makes the streams, as a Tranche node does.
func node(ctx context.Context) (js jetstream.JetStream, stop func()) {
	dir, err := os.MkdirTemp("", "tranche-example-")
	must(err)
	s, err := server.NewServer(&server.Options{
		Host: "127.0.0.1", Port: -1, JetStream: true, StoreDir: dir, NoSigs: true, NoLog: true,
	})
	must(err)
	s.Start()
	s.ReadyForConnections(time.Minute)
	must(os.Setenv("NATS_URL", s.ClientURL()))
	nc, err := endpoints.Connect()
	must(err)
	js, err = jetstream.New(nc)
	must(err)
	_, err = stream.Ensure(ctx, js, stream.Config{})
	must(err)
	return js, func() {
		nc.Close()
		s.Shutdown()
		s.WaitForShutdown()
		must(os.RemoveAll(dir))
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
