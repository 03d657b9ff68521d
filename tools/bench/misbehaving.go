package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/tools/faultyservice"
)

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
