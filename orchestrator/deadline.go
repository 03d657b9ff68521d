package orchestrator

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/inspect"
)

const (
	// deadlineEvery is how often runs with a done_by are paced, and helpEvery how often a fix is sought for one that will
	// be late.
	deadlineEvery = 10 * time.Second
	helpEvery     = time.Minute
)

// deadlines is the leader task that paces runs so that they are done by their time, and says which will not be. It also
// keeps what requests cost in runs that completed.
func (n *Node) deadlines() func(context.Context, workqueue.Lease) (time.Duration, error) {
	looked := map[workqueue.RunID]time.Time{} // for what would help
	var profiled time.Time
	return func(ctx context.Context, lease workqueue.Lease) (time.Duration, error) {
		timed, cancel := context.WithTimeout(ctx, deadlineEvery)
		defer cancel()
		due, err := inspect.New(n.core.Store).Deadlines(timed)
		if err != nil {
			return deadlineEvery, err
		}
		if due == nil {
			profiled, err = n.keepProfiles(timed, lease, profiled)
			return deadlineEvery, err
		}
		helped := false // one a turn, and time left to store
		thinking, done := context.WithTimeout(timed, deadlineEvery/2)
		defer done()
		paces, err := due.Paces(thinking, func(run workqueue.RunID) bool {
			if helped || time.Since(looked[run]) < helpEvery {
				return false
			}
			helped, looked[run] = true, time.Now()
			return true
		})
		for i := range paces {
			err = errors.Join(err, n.setPace(timed, lease, &paces[i]))
		}
		until, kept := n.keepProfiles(timed, lease, profiled)
		profiled = until
		return deadlineEvery, errors.Join(err, kept)
	}
}

// keepProfiles stores what requests cost in runs that completed lately, and returns until when.
func (n *Node) keepProfiles(ctx context.Context, lease workqueue.Lease, since time.Time) (time.Time, error) {
	profiles, until, err := inspect.New(n.core.Store).Profiles(ctx, since)
	if err == nil && len(profiles) > 0 {
		err = control.New(n.core.Store).KeepProfiles(ctx, lease, profiles)
	}
	if err != nil {
		return since, err
	}
	return until, nil
}

// setPace stores a pace that changed, or the risk of being late.
func (n *Node) setPace(ctx context.Context, lease workqueue.Lease, p *control.RunPace) error {
	differs := func(s control.StepPace) bool { return s.Cap != s.WasCap || s.Share != s.WasShare }
	if p.Risk == nil && !p.WasAtRisk && !slices.ContainsFunc(p.Steps, differs) {
		return nil
	}
	changed, err := control.New(n.core.Store).SetPace(ctx, lease, p)
	if err == nil && changed {
		n.core.Log.Info("pace", zap.Stringer("run", p.Run), zap.String("reason", p.Why()))
		n.core.WakeOthers()
	}
	return err
}
