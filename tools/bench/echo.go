package main

import (
	"context"
	"errors"
	"os/signal"
	"syscall"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints"
)

const (
	echoEndpoint = "echo"
	flowEndpoint = "echo-thrice"
	// echoArgument, as the only argument but a NATS URL, makes this program the echo service.
	echoArgument = "-serve-echo"
)

// customer is the items' payload. The service decodes and encodes each field, as a real one would.
type customer struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Segment string `json:"segment"`
	Since   string `json:"since"`
	Pad     string `json:"pad,omitempty"`
}

func isEcho(args []string) bool { return len(args) == 3 && args[1] == echoArgument }

// runEcho serves until it is told to stop. It is an ordinary service, with every setting at its default.
func runEcho(natsURL string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	nc, err := nats.Connect(natsURL)
	if err != nil {
		return err
	}
	defer nc.Close()
	svc, err := endpoints.New(nc, endpoints.Config{Name: echoEndpoint, Version: "1.0.0"})
	if err != nil {
		return err
	}
	if err := endpoints.HandleList(svc, echoEndpoint, echo); err != nil {
		return err
	}
	for _, name := range gatherEndpoints {
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
	if err := svc.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func echo(_ context.Context, chunk *endpoints.Chunk[customer, customer]) error {
	for _, item := range chunk.Items() {
		item.Reply(item.In)
	}
	return nil
}

type stage = endpoints.Stage[customer, customer, endpoints.None, endpoints.None]

// thrice is a flow of three stages. Each asks the plain endpoint for what the one before has brought; the last answers.
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
