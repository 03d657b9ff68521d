// Command flow runs three services in one process to show a flow with two stages: a statement queries an account and
// an exchange rate concurrently, and combines the answers. Real services would run in separate processes, without
// other changes.
package main

import (
	"context"
	"log"
	"os/signal"
	"syscall"

	"github.com/nats-io/nats.go"
	"golang.org/x/sync/errgroup"

	"github.com/tranchehq/tranche/endpoints"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	nc, err := endpoints.Connect() // NATS_URL, NATS_CREDS, … or the server of tranche serve
	if err != nil {
		log.Fatal(err)
	}
	defer nc.Close()
	if err := run(ctx, nc); err != nil {
		log.Print(err)
	}
}

func run(ctx context.Context, nc *nats.Conn) error {
	balances := map[string]float64{"A-1": 120, "A-2": 80.5, "A-3": -3}
	factors := map[string]float64{"NOK": 11.5, "USD": 1.25}
	group, ctx := errgroup.WithContext(ctx)
	for name, handle := range map[string]func(*endpoints.Service) error{
		"statements": handleStatements,
		"accounts":   func(svc *endpoints.Service) error { return handleAccounts(svc, balances) },
		"rates":      func(svc *endpoints.Service) error { return handleRates(svc, factors) },
	} {
		svc, err := endpoints.New(nc, endpoints.Config{Name: name, Version: "1.0.0"})
		if err != nil {
			return err
		}
		if err := handle(svc); err != nil {
			return err
		}
		group.Go(func() error { return svc.Run(ctx) })
	}
	return group.Wait()
}
