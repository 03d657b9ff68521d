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

// busyWait is the time until a locked step is retried.
const busyWait = 50 * time.Millisecond

// claimRoom is the number of claims' worth of slices that one transaction may take of many steps.
const claimRoom = 2

// round is one pass over the endpoints that have work.
type round struct {
	taken  int             // number of slices
	wait   time.Duration   // until the first step that is waiting, for example for a rate, may have more; 0: none is
	shut   map[string]bool // endpoints that rest, or were claimed of in this round
	noRoom map[string]bool // paces of steps that this node has no capacity for now
}

// round claims of steps with work, a few per endpoint together, until slices were taken or no endpoint is left. So
// with thousands of runs, an endpoint's limit is checked once, and steps at a limit hold up no others.
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
				return r, nil //nolint:nilerr // the heartbeat starts a new session and wakes the claimer
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

// bundles groups steps by transaction: all of services together, and each of the node itself alone, for its capacity.
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

// ask claims of some steps. Their endpoints are skipped for the rest of the round.
func (c *claimer) ask(ctx context.Context, r *round, steps []dispatch.Runnable) error {
	if step := &steps[0]; step.Kind != workqueue.KindEndpoint && c.own.Room(step.Kind, step.Endpoint) <= 0 {
		r.noRoom[step.Endpoint], r.shut[step.Place] = true, true
		return nil
	}
	c.node.Faults.Hit(fault.ClaimBefore)
	claimed, err := c.claim(ctx, steps)
	if errors.Is(err, workqueue.ErrBusy) {
		c.node.Log.Debug("claim", zap.Error(err)) // retried in the next round
		r.sooner(busyWait)
		r.shut[steps[0].Place] = true
		return nil
	}
	for i := range steps {
		r.shut[steps[i].Place] = true // once slices were taken, the round ends
	}
	if err != nil {
		return err
	}
	for i := range claimed {
		c.note(r, &steps[i], &claimed[i])
	}
	return nil
}

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

// claim takes slices of steps and hands them to the publishers or the node's own work.
func (c *claimer) claim(ctx context.Context, steps []dispatch.Runnable) ([]dispatch.Claimed, error) {
	n := c.node
	session := n.Session()
	reqs := make([]dispatch.ClaimRequest, len(steps))
	for i := range steps {
		step := &steps[i]
		reqs[i] = dispatch.ClaimRequest{
			Session: session, Run: step.Run, Step: step.Step, MaxSlices: c.cfg.ClaimSlices, MaxBytes: n.RequestBytes(),
			LimitBytes: n.LargestRequest(),
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
		if !c.hand(ctx, handing{session, asked}, &steps[i], &claimed[i]) {
			break // the end of the session releases them
		}
	}
	return claimed, nil
}

type handing struct {
	session workqueue.SessionID
	asked   time.Time // when the claim began
}

// hand passes on the slices of a step, and reports whether it passed on all.
func (c *claimer) hand(ctx context.Context, h handing, step *dispatch.Runnable, claimed *dispatch.Claimed) bool {
	if len(claimed.Slices) == 0 {
		return true
	}
	c.turns.took(step.Ref())
	for _, s := range claimed.Slices {
		a := Assignment{s, h.session, s.Endpoint, claimed.Params, claimed.Work, h.asked}
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
