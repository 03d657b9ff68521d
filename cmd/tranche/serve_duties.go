package main

import (
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/trackers"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue/identity"
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
