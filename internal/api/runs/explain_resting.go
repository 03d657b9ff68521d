package runs

import (
	"time"

	"github.com/tranchehq/tranche/workqueue/explain"
)

// tellResting refines groups that are about to be claimed, when they are of a service that has asked this node to leave
// it alone. Only this node knows: another may not have been told.
func (s *Routes) tellResting(groups []explain.MissingGroup, alone bool, at time.Time) {
	if s.config.RestsUntil == nil {
		return
	}
	for i := range groups {
		g := &groups[i]
		until := s.config.RestsUntil(g.Endpoint)
		if g.Reason != explain.ReasonNext || !until.After(at) {
			continue
		}
		g.Why += "; the service has asked this node to leave it alone (Retry-After) until " +
			until.UTC().Format("2006-01-02 15:04:05 UTC")
		if alone {
			g.Reason, g.Owner = explain.ReasonThrottled, explain.OwnerTimer
			g.Who, g.When = "the pause for a service that has too much to do", &until
			g.Next = "a node claims them and asks again"
		}
	}
}
