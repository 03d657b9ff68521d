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
	"github.com/tranchehq/tranche/tools/demokit"
	"github.com/tranchehq/tranche/tools/faultyservice"
)

const (
	echoEndpoint = "echo"
	flowEndpoint = "echo-thrice"

	// With a NATS URL after it, each makes this program a service: the echo service; many echo endpoints, by number; or
	// a faulty one, by JSON configuration and ledger path (or "").
	echoArgument        = "-serve-echo"
	manyArgument        = "-serve-many"
	misbehavingArgument = "-serve-misbehaving"
)

// serveAs runs this program as a service if its arguments say so.
func serveAs(args []string) (called bool, err error) {
	for argument, run := range map[string]func(context.Context, *nats.Conn, []string) error{
		echoArgument: runEcho, manyArgument: runMany, misbehavingArgument: runMisbehaving,
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

func runMisbehaving(ctx context.Context, nc *nats.Conn, args []string) (err error) {
	config, ledger := args[0], args[1]
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
	svc, err := faultyservice.New(nc, cfg)
	if err != nil {
		return err
	}
	return svc.Run(ctx)
}

// misbehave starts a faulty service as a process, which ends with the bed. With ledger it writes to a file.
func (b *bed) misbehave(cfg faultyservice.Config, ledger bool) {
	path := ""
	if ledger {
		path = b.ledgerPath(cfg.Endpoint)
	}
	text := demokit.Must(json.Marshal(cfg))
	b.others = append(b.others, b.serve("service "+cfg.Endpoint, misbehavingArgument, string(text), path))
}

func (b *bed) ledgerPath(endpoint string) string { return filepath.Join(b.dir, "ledger-"+endpoint) }

// ledger reads what the services of an endpoint have recorded. The fault must have occurred.
func (b *bed) ledger(endpoint string, fault faultyservice.Fault) *faultyservice.Ledger {
	file := demokit.Must(os.Open(b.ledgerPath(endpoint)))
	defer func() { _ = file.Close() }() // opened for reading
	ledger, err := faultyservice.ReadLedger(file)
	if err == nil && ledger.Fired(fault) == 0 {
		err = errors.New("the fault did not fire")
	}
	check(err, "the ledger of %s", endpoint)
	return ledger
}
