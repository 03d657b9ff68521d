package main

import (
	"context"
	"errors"
	"fmt"
	"os/signal"
	"strconv"
	"syscall"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints"
)

// manyArgument, with a NATS URL and a number after it, makes this program a service of so many echoing endpoints.
const manyArgument = "-serve-many"

func isMany(args []string) bool { return len(args) == 4 && args[1] == manyArgument }

// manyEndpoint is the name of one of the endpoints of such a service.
func manyEndpoint(i int) string { return fmt.Sprintf("many-%03d", i) }

// runMany serves until it is told to stop, with every setting at its default.
func runMany(natsURL, count string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	n, err := strconv.Atoi(count)
	if err != nil {
		return fmt.Errorf("the number of endpoints: %w", err)
	}
	nc, err := nats.Connect(natsURL)
	if err != nil {
		return err
	}
	defer nc.Close()
	svc, err := endpoints.New(nc, endpoints.Config{Name: "many", Version: "1.0.0"})
	if err != nil {
		return err
	}
	for i := range n {
		if err := endpoints.HandleList(svc, manyEndpoint(i), echo); err != nil {
			return err
		}
	}
	if err := svc.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
