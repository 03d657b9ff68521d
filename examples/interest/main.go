// Command interest is a minimal service: it computes a year's interest for chunks of accounts.
package main

import (
	"context"
	"log"
	"os/signal"
	"syscall"

	"github.com/tranchehq/tranche/endpoints"
)

type account struct {
	ID      string  `json:"id"`
	Balance float64 `json:"balance,string"`
}

type interest struct {
	Amount float64 `json:"amount"`
}

func yearEnd(_ context.Context, chunk *endpoints.Chunk[account, interest]) error {
	for _, item := range chunk.Items() { // here: one query for all of chunk.Keys()
		if item.In.Balance < 0 {
			item.Fail("overdrawn", "the balance is %.2f", item.In.Balance)
			continue
		}
		item.Reply(interest{Amount: item.In.Balance * 0.015})
	}
	return nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	nc, err := endpoints.Connect() // NATS_URL, NATS_CREDS, … or the server of tranche serve
	if err != nil {
		log.Fatal(err)
	}
	svc, err := endpoints.New(nc, endpoints.Config{Name: "interest", Version: "1.0.0"})
	if err != nil {
		log.Fatal(err)
	}
	if err := endpoints.HandleList(svc, "year-end-interest", yearEnd, endpoints.Concurrency(4)); err != nil {
		log.Fatal(err)
	}
	if err := svc.Run(ctx); err != nil {
		log.Fatal(err)
	}
}
