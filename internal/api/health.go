package api

import (
	"context"

	"github.com/danielgtaylor/huma/v2"

	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

// Health is what a person must see to.
type Health health.Report

func (s *Server) registerHealth(api huma.API) {
	report := get("health", "/health", "What a person must see to")
	report.Description = "Conditions of runs, endpoints, nodes, streams and disks, the worst first: each with its " +
		"severity, since when it has been so, and what helps. It answers with status 200 whatever it finds, also while " +
		"PostgreSQL or NATS is away: that is a condition then. Programs that route requests ask /readyz instead. However " +
		"many ask, it is looked at most every few seconds."
	register(s, api, report, func(ctx context.Context, _ *struct{}) (*Health, error) {
		found, err := s.health.Report(ctx)
		return (*Health)(found), err
	})
	nodes := get("list-nodes", "/nodes", "The nodes, who leads, and what each holds")
	register(s, api, nodes, func(ctx context.Context, _ *struct{}) (inspect.Nodes,
		error) {
		return inspect.New(s.store).Nodes(ctx)
	})
}

// Watch looks after the system's health for a duty: what callers get, but whole.
func (s *Server) Watch() *health.Watch { return s.whole }

// watchHealth makes what looks after the system's health.
func watchHealth(s *Server, whole bool) (*health.Watch, error) {
	return health.New(health.Config{
		Log: s.log, Store: s.store, NC: s.nc, DataDir: s.config.DataDir,
		StoresStreams: s.config.StoresStreams, Short: s.short, Whole: whole,
	})
}
