package main

import (
	"context"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/trackers"
	"github.com/tranchehq/tranche/orchestrator"
	trackerstore "github.com/tranchehq/tranche/workqueue/tracker"
)

// webhookDuty tells of the ends of tracker batches, by HTTP.
func (s *serveCommand) webhookDuty(p *parts, log *zap.Logger) (orchestrator.Duty, error) {
	hooks, err := trackers.NewWebhooks(trackerstore.New(p.store), trackers.WebhooksConfig{
		Connections: p.connections, Transport: p.transport, Log: log.Named("webhooks"),
	})
	if err != nil {
		return orchestrator.Duty{}, err
	}
	return orchestrator.Duty{Name: "tracker webhooks", Run: hooks.Run}, nil
}

// openTrackers makes the tracker service and takes requests to it over NATS. Those that were taken have their answers
// before the connections are closed.
func (s *serveCommand) openTrackers(p *parts, node *orchestrator.Node, log *zap.Logger) (*trackers.Service, error) {
	service, err := trackers.New(trackerstore.New(p.store), trackers.Config{
		Connections: p.connections, Ended: node.PublishEvents, Log: log.Named("trackers"),
	})
	if err != nil {
		return nil, err
	}
	listener, err := trackers.Listen(p.nc, service, log.Named("trackers"))
	if err != nil {
		return nil, err
	}
	p.undo = append(p.undo, func(ctx context.Context) error {
		err := listener.Close(ctx)
		service.Wait()
		return err
	})
	return service, nil
}
