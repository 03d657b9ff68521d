package demo

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/examples/statements"
)

// ServiceConfig says where the statement service works. What is empty is taken from the environment: NATS_URL and the
// other variables that endpoints.Connect reads, and PostgreSQL's own, PGHOST and so on.
type ServiceConfig struct {
	NATS string // URL
	Bank string // URL
	Log  *zap.Logger
}

// RunService is the demo's statement service, until ctx ends.
func RunService(ctx context.Context, config ServiceConfig) error {
	if config.Log == nil {
		config.Log = zap.NewNop()
	}
	bank, err := pgxpool.New(ctx, config.Bank)
	if err != nil {
		return fmt.Errorf("connect to the bank (--bank): %w", err)
	}
	defer bank.Close()
	options := []nats.Option{nats.Name("statements"), endpoints.LogTo(config.Log)}
	if config.NATS != "" {
		options = append(options, func(o *nats.Options) error {
			o.Servers = []string{config.NATS}
			return nil
		})
	}
	nc, err := endpoints.Connect(options...)
	if err != nil {
		return err
	}
	defer nc.Close()
	return statements.Run(ctx, nc, bank, config.Log)
}
