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

const (
	echoEndpoint = "echo"
	flowEndpoint = "echo-thrice"

	// With a NATS URL after it, each makes this program a service: the echo service, or many echo endpoints, by number.
	echoArgument = "-serve-echo"
	manyArgument = "-serve-many"
)

// serveAs runs this program as a service if its arguments say so.
func serveAs(args []string) (called bool, err error) {
	for argument, run := range map[string]func(context.Context, *nats.Conn, []string) error{
		echoArgument: runEcho, manyArgument: runMany,
	} {
		if len(args) > 1 && args[0] == argument {
			return true, serving(args[1], args[2:], run)
		}
	}
	return false, nil
}

func serving(natsURL string, args []string, run func(context.Context, *nats.Conn, []string) error) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	nc, err := nats.Connect(natsURL)
	if err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	defer nc.Close()
	if err := run(ctx, nc, args); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// customer is an item's payload. The service decodes and encodes each field, like a real one.
type customer struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Segment string `json:"segment"`
	Since   string `json:"since"`
	Note    string `json:"note,omitempty"`
}

// runEcho is an ordinary service with default settings.
func runEcho(ctx context.Context, nc *nats.Conn, _ []string) error {
	svc, err := endpoints.New(nc, endpoints.Config{Name: echoEndpoint, Version: "1.0.0"})
	if err != nil {
		return err
	}
	for _, name := range append(gatherEndpoints(), echoEndpoint) {
		if err := endpoints.HandleList(svc, name, echo); err != nil {
			return err
		}
	}
	if err := endpoints.HandleList(svc, composeEndpoint, compose); err != nil {
		return err
	}
	if err := endpoints.HandleFlow(svc, flowEndpoint, thrice()); err != nil {
		return err
	}
	return svc.Run(ctx)
}

func echo(_ context.Context, chunk *endpoints.Chunk[customer, customer]) error {
	for _, item := range chunk.Items() {
		item.Reply(item.In)
	}
	return nil
}

type stage = endpoints.Stage[customer, customer, endpoints.None, endpoints.None]

// thrice is a flow of three stages: two query the plain endpoint with the previous result, the last answers.
func thrice() []func(context.Context, *stage) error {
	again := endpoints.To[customer, customer](echoEndpoint)
	return []func(context.Context, *stage) error{
		func(_ context.Context, s *stage) error {
			for _, item := range s.Items() {
				again.Ask(item, item.In)
			}
			return nil
		},
		func(_ context.Context, s *stage) error {
			for _, item := range s.Items() {
				again.Ask(item, again.Answer(item))
			}
			return nil
		},
		func(_ context.Context, s *stage) error {
			for _, item := range s.Items() {
				item.Reply(again.Answer(item))
			}
			return nil
		},
	}
}

func manyEndpoint(i int) string { return fmt.Sprintf("many-%03d", i) }

func runMany(ctx context.Context, nc *nats.Conn, args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return fmt.Errorf("the number of endpoints: %w", err)
	}
	svc, err := endpoints.New(nc, endpoints.Config{Name: "many", Version: "1.0.0"})
	if err != nil {
		return err
	}
	for i := range n {
		if err := endpoints.HandleList(svc, manyEndpoint(i), echo); err != nil {
			return err
		}
	}
	return svc.Run(ctx)
}
