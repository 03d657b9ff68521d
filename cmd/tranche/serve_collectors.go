package main

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/producers"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	collectorstore "github.com/tranchehq/tranche/workqueue/collector"
)

// answersPatience is how long a stop waits for the answers to operations that came before it. Others need time, too.
const answersPatience = 5 * time.Second

// openCollectors takes operations for collectors over NATS. Those that were taken have their answers before the
// connections are closed.
func (*serveCommand) openCollectors(p *parts, node *orchestrator.Node, log *zap.Logger) (*producers.Producers, error) {
	taking := producers.New(collectorstore.New(p.store), node.Collectors(), p.fetchers[workqueue.KindSQL],
		log.Named("producers"))
	listener, err := taking.Listen(p.nc)
	if err != nil {
		return nil, err
	}
	p.undo = append(p.undo, func(ctx context.Context) error {
		timed, cancel := context.WithTimeout(ctx, answersPatience)
		defer cancel()
		return errors.Join(listener.Close(timed), taking.Wait(ctx))
	})
	return taking, nil
}
