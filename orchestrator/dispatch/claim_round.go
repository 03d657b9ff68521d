package dispatch

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/fault"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
)

// busyWait is in how long a step is looked at again that someone else held.
const busyWait = 50 * time.Millisecond

// claimRoom is how many claims' worth of slices one transaction may take when it takes them of many steps.
const claimRoom = 2

// round is once round the endpoints that have work.
type round struct {
	taken  int             // slices
	wait   time.Duration   // until the first step that a rate or the like kept waiting may have more; 0: none did
	shut   map[string]bool // endpoints that rest, or that were asked
	noRoom map[string]bool // what paces steps that this node cannot work on now
}

// round looks for steps that have work, a few of each endpoint, and claims of all of them at once, until something was
// taken or no endpoint is left at which something can be. So a claim costs what it hands out: with thousands of runs,
// who is at an endpoint's limit is found out once and not by each, and what cannot be claimed of keeps no other
// waiting.
func (c *claimer) round(ctx context.Context) (round, error) {
	now := time.Now()
	r := round{shut: map[string]bool{}, noRoom: map[string]bool{}}
	r.sooner(c.resting.next(now))
	for _, endpoint := range c.shut.all(now) {
		r.shut[endpoint] = true
	}
	r.sooner(c.shut.next(now))
	r.sooner(c.shutAuto.next(now))
	var failed error
	for ctx.Err() == nil {
		page, err := c.page(ctx, &r)
		if err != nil {
			return r, errors.Join(failed, err)
		}
		for _, place := range page.Without {
			r.shut[place] = true
		}
		for _, steps := range bundles(page.Steps) {
			err := c.ask(ctx, &r, steps)
			if errors.Is(err, workqueue.ErrSessionLost) || ctx.Err() != nil {
				return r, nil //nolint:nilerr // the heartbeat opens a new session and wakes the claimer
			}
			failed = errors.Join(failed, err)
		}
		if r.taken > 0 || !page.More {
			break
		}
	}
	return r, failed
}

// page reads the next steps, without those that rest.
func (c *claimer) page(ctx context.Context, r *round) (dispatch.Found, error) {
	reading, cancel := context.WithTimeout(ctx, core.ReadTimeout)
	defer cancel()
	page, err := c.queue.RunnableSteps(reading, dispatch.Search{
		Skip: c.resting.all(time.Now()), Shut: names(r.shut), ShutAuto: c.shutAuto.all(time.Now()), Locals: c.cfg.Locals,
		NoRoom: c.own.Full(names(r.noRoom)), Own: c.node.Session(), Late: c.elsewhere.late(time.Now()),
	})
	if err == nil {
		c.elsewhere.seen(time.Now(), page.Elsewhere, r.shut)
		c.node.Elsewhere.Store(len(c.elsewhere) > 0)
		r.sooner(c.elsewhere.next(time.Now()))
	}
	c.turns.order(page.Steps)
	return page, err
}

func names(set map[string]bool) []string {
	list := make([]string, 0, len(set))
	for name := range set {
		list = append(list, name)
	}
	return list
}

// bundles puts together what is claimed at once: all steps that services do, and each of those that the node does
// itself, of which it claims no more than it has room for.
func bundles(page []dispatch.Runnable) (all [][]dispatch.Runnable) {
	var together []dispatch.Runnable
	for i := range page {
		if page[i].Kind == workqueue.KindEndpoint {
			together = append(together, page[i])
		}
	}
	if len(together) > 0 {
		all = append(all, together)
	}
	for i := range page {
		if page[i].Kind != workqueue.KindEndpoint {
			all = append(all, page[i:i+1])
		}
	}
	return all
}

// lacksRoom reports whether the step's work is the node's own, and it has no room for it.
func (c *claimer) lacksRoom(r *round, step *dispatch.Runnable) bool {
	if step.Kind == workqueue.KindEndpoint || c.own.Room(step.Kind, step.Endpoint) > 0 {
		return false
	}
	r.noRoom[step.Endpoint] = true
	return true
}

// ask claims of some steps. An endpoint of which it brings nothing is not asked again in this round.
func (c *claimer) ask(ctx context.Context, r *round, steps []dispatch.Runnable) error {
	if c.lacksRoom(r, &steps[0]) {
		r.shut[steps[0].Place] = true
		return nil
	}
	c.node.Faults.Hit(fault.ClaimBefore)
	claimed, err := c.claim(ctx, steps)
	if errors.Is(err, workqueue.ErrBusy) {
		c.node.Log.Debug("claim", zap.Error(err)) // its turn comes with the next round
		r.sooner(busyWait)
		r.shut[steps[0].Place] = true
		return nil
	}
	for i := range steps {
		r.shut[steps[i].Place] = true // when something was taken, this round is over
	}
	if err != nil {
		return err
	}
	for i := range claimed {
		c.note(r, &steps[i], &claimed[i])
	}
	return nil
}

// note remembers what a claim said of a step.
func (c *claimer) note(r *round, step *dispatch.Runnable, claimed *dispatch.Claimed) {
	r.taken += len(claimed.Slices)
	r.sooner(claimed.Wait)
	switch claimed.Bound {
	case dispatch.BoundEndpoint:
		c.shut.rest(step.Endpoint, claimed.Wait)
	case dispatch.BoundAuto:
		c.shutAuto.rest(step.Endpoint, claimed.Wait)
	case dispatch.BoundStep:
		c.resting.rest(step.Ref(), claimed.Wait)
	case dispatch.BoundBusy:
		r.sooner(busyWait)
	}
}

func (r *round) sooner(wait time.Duration) {
	if wait > 0 && (r.wait == 0 || wait < r.wait) {
		r.wait = wait
	}
}

// claim takes slices of steps and hands them to the publishers, or to those who fetch.
func (c *claimer) claim(ctx context.Context, steps []dispatch.Runnable) ([]dispatch.Claimed, error) {
	n := c.node
	session := n.Session()
	reqs := make([]dispatch.ClaimRequest, len(steps))
	for i := range steps {
		step := &steps[i]
		_, known := c.params[step.Run]
		reqs[i] = dispatch.ClaimRequest{
			Session: session, Run: step.Run, Step: step.Step, MaxSlices: c.cfg.ClaimSlices, MaxBytes: n.RequestBytes(),
			LimitBytes: n.LargestRequest(), Params: !known,
		}
		if step.Kind != workqueue.KindEndpoint {
			c.own.Narrow(&reqs[i], step)
		}
	}
	asked := time.Now()
	claimed, err := c.queue.ClaimAll(ctx, reqs, claimRoom*c.cfg.ClaimSlices)
	if err != nil {
		return nil, err
	}
	taken := 0
	for i := range claimed {
		taken += len(claimed[i].Slices)
	}
	if taken == 0 {
		n.Stats.EmptyClaims.Add(1)
		return claimed, nil
	}
	n.Faults.Hit(fault.ClaimCommitted)
	n.Stats.Claims.Add(1)
	c.node.Meter.Took(core.TimingClaim, time.Since(asked))
	n.Stats.Slices.Add(int64(taken))
	for i := range claimed {
		if !c.hand(ctx, handing{session, asked, reqs[i].Params}, &steps[i], &claimed[i]) {
			break // the session's end hands them back
		}
	}
	return claimed, nil
}

// handing is what the slices of a claim have in common.
type handing struct {
	session workqueue.SessionID
	asked   time.Time // when the claim began
	params  bool      // it brought the run's parameters
}

// hand gives what was claimed of a step to those who see to it, and reports whether all of it was.
func (c *claimer) hand(ctx context.Context, h handing, step *dispatch.Runnable, claimed *dispatch.Claimed) bool {
	if len(claimed.Slices) == 0 {
		return true
	}
	if h.params {
		c.params.put(step.Run, claimed.Params)
	}
	params := claimed.Params
	if !h.params {
		params = c.params[step.Run]
	}
	c.turns.took(step.Ref())
	for _, s := range claimed.Slices {
		a := Assignment{s, h.session, s.Endpoint, params, claimed.Work, h.asked}
		if step.Kind != workqueue.KindEndpoint {
			c.fetch(a)
			continue
		}
		select {
		case c.assigned.Of(a.Mask.Count() <= smallItems) <- a:
		case <-ctx.Done():
			return false
		}
	}
	return true
}
