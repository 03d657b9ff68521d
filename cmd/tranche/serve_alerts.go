package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/alerts"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	alertstore "github.com/tranchehq/tranche/workqueue/alert"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// alertFlags say by what alerts may tell somebody, beside what the connections file allows. Their links begin with
// --public-url.
type alertFlags struct {
	AlertProgram map[string]string `env:"TRANCHE_ALERT_PROGRAM" help:"A program that alerts may have run on this server, and their name for it; may stand several times." placeholder:"NAME=PATH"`
}

// alerting is what the duty looks at. The node has the duty from the start, and the API's server comes after the node.
type alerting struct {
	receivers *alerts.Receivers
	node      atomic.Pointer[orchestrator.Node]
	server    atomic.Pointer[api.Server]
}

// startAlerts gives the node the duties to look what there is to tell, and to tell it.
func (s *serveCommand) startAlerts(p *parts, log *zap.Logger) (err error) {
	p.alerting = &alerting{}
	p.alerting.receivers, err = alerts.NewReceivers(alerts.Config{
		Connections: p.connections, Transport: p.transport, Programs: s.AlertProgram, Public: s.PublicURL,
	})
	if err != nil {
		return fmt.Errorf("--alert-program, --public-url: %w", err)
	}
	runs := inspect.New(p.store)
	duty, err := alerts.New(alerts.DutyConfig{
		Store: alertstore.New(p.store), Receivers: p.alerting.receivers, Health: p.alerting.health,
		Wake: p.alerting.wake, Log: log.Named("alerts"),
		Left: func(ctx context.Context, run workqueue.RunID) (time.Duration, error) {
			view, err := runs.Run(ctx, run)
			if err != nil || view.ETASeconds == nil {
				return 0, err
			}
			return time.Duration(*view.ETASeconds * float64(time.Second)), nil
		},
	})
	if err != nil {
		return err
	}
	p.duties = append(p.duties, duty.Duties()...)
	return nil
}

func (a *alerting) bind(node *orchestrator.Node, server *api.Server) {
	a.node.Store(node)
	a.server.Store(server)
}

// health is what callers of the API get, but whole; nil, as long as there is none.
func (a *alerting) health(ctx context.Context) (*health.Report, error) {
	server := a.server.Load()
	if server == nil {
		return nil, nil
	}
	return server.Watch().Report(ctx)
}

func (a *alerting) wake(duty string) {
	if node := a.node.Load(); node != nil {
		node.WakeDuty(duty)
	}
}
