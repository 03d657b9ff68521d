package main

import (
	"context"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/producers"
	"github.com/tranchehq/tranche/orchestrator"
)

// openCollectors takes operations for collectors over NATS. Those that were taken have their answers before the
// connections are closed.
func (*serveCommand) openCollectors(p *parts, node *orchestrator.Node, log *zap.Logger) (*producers.Producers, error) {
	taking := producers.New(p.store, node, log.Named("producers"))
	listener, err := taking.Listen(p.nc)
	if err != nil {
		return nil, err
	}
	p.undo = append(p.undo, func(ctx context.Context) error {
		if err := listener.Close(ctx); err != nil {
			return err
		}
		return taking.Wait(ctx)
	})
	return taking, nil
}
