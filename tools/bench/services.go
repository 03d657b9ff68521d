package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/tools/faultyservice"
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

// misbehavingArgument, with a NATS URL, a configuration as JSON and a ledger's path (or "") after it, makes this program
// a service that misbehaves.
const misbehavingArgument = "-serve-misbehaving"

func isMisbehaving(args []string) bool { return len(args) == 5 && args[1] == misbehavingArgument }

// runMisbehaving serves until it is told to stop.
func runMisbehaving(natsURL, config, ledger string) (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var cfg faultyservice.Config
	if err := json.Unmarshal([]byte(config), &cfg); err != nil {
		return fmt.Errorf("understand the configuration of a service: %w", err)
	}
	if ledger != "" {
		file, err := os.OpenFile(ledger, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return fmt.Errorf("open a ledger: %w", err)
		}
		defer func() { err = errors.Join(err, file.Close()) }()
		cfg.Ledger = faultyservice.NewLedger(file)
	}
	nc, err := nats.Connect(natsURL)
	if err != nil {
		return fmt.Errorf("connect to NATS: %w", err)
	}
	defer nc.Close()
	svc, err := faultyservice.New(nc, cfg)
	if err != nil {
		return err
	}
	return svc.Run(ctx)
}

// misbehave starts a service, a process of its own, which ends with the bed. Its ledger is a file when asked for.
func (b *bed) misbehave(cfg faultyservice.Config, ledger bool) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	text, err := json.Marshal(cfg)
	if err != nil {
		return fmt.Errorf("write the configuration of service %s: %w", cfg.Endpoint, err)
	}
	path := ""
	if ledger {
		path = b.ledgerPath(cfg.Endpoint)
	}
	c, err := startChild("service "+cfg.Endpoint, nil, self, misbehavingArgument, b.nc.ConnectedUrl(), string(text), path)
	if err != nil {
		return err
	}
	b.others = append(b.others, c)
	return nil
}

func (b *bed) ledgerPath(endpoint string) string { return filepath.Join(b.dir, "ledger-"+endpoint) }

// ledger reads what the services of an endpoint have noted so far.
func (b *bed) ledger(endpoint string) (*faultyservice.Ledger, error) {
	file, err := os.Open(b.ledgerPath(endpoint))
	if err != nil {
		return nil, fmt.Errorf("read the ledger of %s: %w", endpoint, err)
	}
	defer func() { _ = file.Close() }() // it was read only
	return faultyservice.ReadLedger(file)
}
