package main

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/gather/fetch/httpfetch"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/schedules"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue/control"
)

// scheduleFlags say what schedules may read.
type scheduleFlags struct {
	ScheduleFiles string `env:"TRANCHE_SCHEDULE_FILES" help:"The directory below which schedules may read files of items; without it they read none." placeholder:"DIR"`
}

// openSchedules opens what schedules take items from.
func (f *scheduleFlags) openSchedules(p *parts, web *httpfetch.Client) (err error) {
	p.schedules = api.Schedules{Web: schedules.NewWeb(web.Transport()), CheckURL: web.CheckURL}
	if f.ScheduleFiles == "" {
		return nil
	}
	if p.schedules.Files, err = schedules.OpenFiles(f.ScheduleFiles); err != nil {
		return fmt.Errorf("--schedule-files: %w", err)
	}
	p.undo = append(p.undo, func(context.Context) error { return p.schedules.Files.Close() })
	return nil
}

// scheduleEngine is what the duty starts runs by. The node has the duty from the start, and the API's server comes
// after the node.
type scheduleEngine struct {
	node   atomic.Pointer[orchestrator.Node]
	server atomic.Pointer[api.Server]
}

var errNoServer = errors.New("this node has not started yet")

// startSchedules gives the node the duty to start what is due.
func startSchedules(p *parts, log *zap.Logger) error {
	p.scheduling = &scheduleEngine{}
	duty, err := schedules.New(p.store, p.scheduling, p.scheduling, schedules.Config{Log: log.Named("schedules")})
	if err != nil {
		return err
	}
	p.schedules.Wake = p.scheduling.wake
	p.duties = append(p.duties, duty.Duty())
	p.undo = append(p.undo, func(context.Context) error {
		duty.Wait() // what the node was loading when it stopped: its context has ended
		return nil
	})
	return nil
}

func (e *scheduleEngine) bind(node *orchestrator.Node, server *api.Server) {
	e.node.Store(node)
	e.server.Store(server)
}

// StartFire implements schedules.Starter.
func (e *scheduleEngine) StartFire(ctx context.Context, job schedules.Job) (schedules.Started, error) {
	server := e.server.Load()
	if server == nil {
		return schedules.Started{}, errNoServer
	}
	return server.Starter().StartFire(ctx, job)
}

// Permanent implements schedules.Starter.
func (e *scheduleEngine) Permanent(err error) bool {
	server := e.server.Load()
	return server != nil && server.Starter().Permanent(err)
}

// Pause implements schedules.Runs.
func (e *scheduleEngine) Pause(ctx context.Context, c control.Control) (control.Controlled, error) {
	node := e.node.Load()
	if node == nil {
		return control.Controlled{}, errNoServer
	}
	return node.Runs().Pause(ctx, c)
}

// Cancel implements schedules.Runs.
func (e *scheduleEngine) Cancel(ctx context.Context, c control.Control) (control.Cancelled, error) {
	node := e.node.Load()
	if node == nil {
		return control.Cancelled{}, errNoServer
	}
	return node.Runs().Cancel(ctx, c)
}

// WakeDuty implements schedules.Runs.
func (e *scheduleEngine) WakeDuty(name string) {
	if node := e.node.Load(); node != nil {
		node.WakeDuty(name)
	}
}

// wake has the leader look at the schedules now.
func (e *scheduleEngine) wake() { e.WakeDuty(schedules.DutyName) }
