package health

import (
	"context"
	"slices"

	"github.com/tranchehq/tranche/workqueue/inspect"
)

// Stand sets, for those runs of a list that are under way, why they stand, as far as a look of the last few seconds
// knows: a list does not wait for one. What stands has no time to go.
func (w *Watch) Stand(ctx context.Context, runs []inspect.RunSummary) error {
	if !slices.ContainsFunc(runs, underWay) {
		return nil
	}
	wait, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	report, err := w.Report(wait)
	if err != nil {
		return ctx.Err()
	}
	var endpoints []string
	all := slices.Concat(report.Conditions, report.Aside) // what is put aside stops runs all the same
	for i := range all {
		if c := &all[i]; c.stops() == oneEndpoint {
			endpoints = append(endpoints, c.Subject)
		}
	}
	asks, err := inspect.New(w.cfg.Store).Asks(ctx, runs, endpoints)
	if err != nil {
		return err
	}
	for i := range runs {
		if r := &runs[i]; underWay(*r) {
			if r.Stands = standing(all, r, asks[r.ID]); r.Stands != nil {
				r.ETASeconds = nil
			}
		}
	}
	return nil
}

func underWay(r inspect.RunSummary) bool { return r.State == "running" && r.Hold == nil }

// standing is the worst that stops a run.
func standing(all []Condition, r *inspect.RunSummary, asks []string) *inspect.Obstacle {
	for i := range all {
		c := &all[i]
		var stops bool
		switch c.stops() {
		case everything:
			stops = true
		case oneEndpoint:
			stops = slices.Contains(asks, c.Subject) || c.Subject == r.ID.String()
		case oneRun:
			stops = c.Subject == r.ID.String()
		case nothing:
		}
		if stops {
			return &inspect.Obstacle{Kind: string(c.Kind), Text: c.Title, Since: c.Since}
		}
	}
	return nil
}

// reach is what a condition stops.
type reach int

const (
	nothing reach = iota
	oneRun
	oneEndpoint // or one run
	everything
)

func (c *Condition) stops() reach {
	switch c.Kind {
	case NoListeners, BreakerOpen, OldestWaiting:
		return oneEndpoint
	case StaleSlices:
		return oneRun
	case LeaderMissing:
		return everything
	case NATS:
		if c.Subject == jetStream {
			return everything
		}
	}
	return nothing
}
