package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/gather/fetch/httpfetch"
	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/alerts"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/internal/trackers"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/orchestrator/schedule"
	"github.com/tranchehq/tranche/workqueue"
	alertstore "github.com/tranchehq/tranche/workqueue/alert"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/identity"
	"github.com/tranchehq/tranche/workqueue/inspect"
	trackerstore "github.com/tranchehq/tranche/workqueue/tracker"
)

// addDuties gives the node what only the one that leads does, beside what every node has by itself.
func (s *serveCommand) addDuties(p *parts, log *zap.Logger) error {
	hooks, err := s.webhookDuty(p, log)
	if err != nil {
		return err
	}
	reaper, err := trackers.NewReaper(trackerstore.New(p.store), log.Named("reaper"))
	if err != nil {
		return err
	}
	p.duties = append(p.duties, hooks, orchestrator.Duty{Name: "reap trackers", Run: reaper.Run})
	if p.oidc == nil {
		return nil
	}
	renewer, err := access.NewRenewer(p.oidc, identity.New(p.store), log.Named("access"))
	if err != nil {
		return err
	}
	p.duties = append(p.duties, orchestrator.Duty{Name: "renew sessions", Run: renewer.Run})
	return nil
}

// scheduleFlags say what schedules may read.
type scheduleFlags struct {
	ScheduleFiles string `env:"TRANCHE_SCHEDULE_FILES" help:"The directory below which schedules may read files of items; without it they read none." placeholder:"DIR"`
}

// openSchedules opens what schedules take items from.
func (f *scheduleFlags) openSchedules(p *parts, web *httpfetch.Client) (err error) {
	p.schedules = api.Schedules{Web: schedule.NewWeb(web.Transport()), CheckURL: web.CheckURL}
	if f.ScheduleFiles == "" {
		return nil
	}
	if p.schedules.Files, err = schedule.OpenFiles(f.ScheduleFiles); err != nil {
		return fmt.Errorf("--schedule-files: %w", err)
	}
	p.undo = append(p.undo, func(context.Context) error { return p.schedules.Files.Close() })
	return nil
}

// later is what duties of the node use that is made after it: the node has its duties from the start.
type later struct {
	node   atomic.Pointer[orchestrator.Node]
	server atomic.Pointer[api.Server]
}

var errNoServer = errors.New("this node has not started yet")

// startSchedules gives the node the duty to start what is due.
func startSchedules(p *parts, log *zap.Logger) error {
	duty, err := schedule.New(p.store, &p.later, &p.later, schedule.Config{Log: log.Named("schedules")})
	if err != nil {
		return err
	}
	p.schedules.Wake = func() { p.later.WakeDuty(schedule.DutyName) }
	p.duties = append(p.duties, duty.Duty())
	p.undo = append(p.undo, func(context.Context) error {
		duty.Wait() // what the node was loading when it stopped: its context has ended
		return nil
	})
	return nil
}

func (l *later) bind(node *orchestrator.Node, server *api.Server) {
	l.node.Store(node)
	l.server.Store(server)
}

// StartFire implements schedule.Starter.
func (l *later) StartFire(ctx context.Context, job schedule.Job) (schedule.Started, error) {
	server := l.server.Load()
	if server == nil {
		return schedule.Started{}, errNoServer
	}
	return server.Starter().StartFire(ctx, job)
}

// Permanent implements schedule.Starter.
func (l *later) Permanent(err error) bool {
	server := l.server.Load()
	return server != nil && server.Starter().Permanent(err)
}

// Pause implements schedule.Runs.
func (l *later) Pause(ctx context.Context, c control.Control) (control.Controlled, error) {
	node := l.node.Load()
	if node == nil {
		return control.Controlled{}, errNoServer
	}
	return node.Runs().Pause(ctx, c)
}

// Cancel implements schedule.Runs.
func (l *later) Cancel(ctx context.Context, c control.Control) (control.Cancelled, error) {
	node := l.node.Load()
	if node == nil {
		return control.Cancelled{}, errNoServer
	}
	return node.Runs().Cancel(ctx, c)
}

// WakeDuty implements schedule.Runs.
func (l *later) WakeDuty(name string) {
	if node := l.node.Load(); node != nil {
		node.WakeDuty(name)
	}
}

// alertFlags say by what alerts may tell somebody, beside what the connections file allows. Their links begin with
// --public-url.
type alertFlags struct {
	AlertProgram map[string]string `env:"TRANCHE_ALERT_PROGRAM" help:"A program that alerts may have run on this server, and their name for it; may stand several times." placeholder:"NAME=PATH"`
}

// startAlerts gives the node the duties to look what there is to tell, and to tell it.
func (s *serveCommand) startAlerts(p *parts, log *zap.Logger) (err error) {
	p.receivers, err = alerts.NewReceivers(alerts.Config{
		Connections: p.connections, Transport: p.transport, Programs: s.AlertProgram, Public: s.PublicURL,
	})
	if err != nil {
		return fmt.Errorf("--alert-program, --public-url: %w", err)
	}
	runs := inspect.New(p.store)
	duty, err := alerts.New(alerts.DutyConfig{
		Store: alertstore.New(p.store), Receivers: p.receivers, Health: p.later.health,
		Wake: p.later.WakeDuty, Log: log.Named("alerts"),
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

// health is what callers of the API get, but whole; nil, as long as there is none.
func (l *later) health(ctx context.Context) (*health.Report, error) {
	server := l.server.Load()
	if server == nil {
		return nil, nil //nolint:nilnil // the API has not started yet
	}
	return server.Watch().Report(ctx)
}
