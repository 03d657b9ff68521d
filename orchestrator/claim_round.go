package orchestrator

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/fault"
	"github.com/tranchehq/tranche/workqueue"
)

// busyWait is in how long a step is looked at again that somebody else held.
const busyWait = 50 * time.Millisecond

// round is once round the steps that have work.
type round struct {
	taken    int           // slices
	wait     time.Duration // until the first step that a rate or the like kept waiting may have more; 0: none did
	asked    []workqueue.StepRef
	shut     map[string]bool // endpoints that take nothing more
	shutAuto map[string]bool // whose automatic steps take nothing more
	noRoom   map[string]bool // what paces steps that this node cannot work on now
}

// round asks every step that has work once, a page of them at a time: the page is read anew each time, so that who has
// the fewest slices out, or came just now, is asked first. Steps of an endpoint that turned out to be at its limit are
// passed over: with thousands of runs, one of them finds it out and not each. A step that cannot be claimed of does not
// keep the others waiting.
func (c *claimer) round(ctx context.Context) (round, error) {
	r := round{shut: map[string]bool{}, shutAuto: map[string]bool{}, noRoom: map[string]bool{}}
	r.wait = c.resting.next(time.Now())
	var failed error
	for ctx.Err() == nil {
		page, err := c.page(ctx, &r)
		if err != nil {
			return r, errors.Join(failed, err)
		}
		for i := range page {
			step := &page[i]
			if r.passes(step) || c.lacksRoom(&r, step) {
				continue
			}
			err := c.ask(ctx, &r, step)
			if errors.Is(err, workqueue.ErrSessionLost) || ctx.Err() != nil {
				return r, nil //nolint:nilerr // the heartbeat opens a new session and wakes the claimer
			}
			failed = errors.Join(failed, err)
		}
		if len(page) < workqueue.RunnablePage {
			break
		}
	}
	return r, failed
}

// page reads the next steps, without those that were asked or rest.
func (c *claimer) page(ctx context.Context, r *round) ([]workqueue.Runnable, error) {
	reading, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	page, err := c.node.store.RunnableSteps(reading, workqueue.Search{
		Limit: workqueue.RunnablePage, Skip: append(c.resting.steps(time.Now()), r.asked...),
		Shut: names(r.shut), ShutAuto: names(r.shutAuto), Locals: c.node.Locals(),
		NoRoom: c.node.fetching.full(names(r.noRoom)),
	})
	if err != nil {
		return nil, err
	}
	c.turns.order(page)
	return page, nil
}

func names(set map[string]bool) []string {
	list := make([]string, 0, len(set))
	for name := range set {
		list = append(list, name)
	}
	return list
}

func (r *round) passes(step *workqueue.Runnable) bool {
	return r.shut[step.Endpoint] || step.Auto && r.shutAuto[step.Endpoint]
}

// lacksRoom reports whether the step's work is the node's own, and it has no room for it.
func (c *claimer) lacksRoom(r *round, step *workqueue.Runnable) bool {
	if step.Kind == workqueue.KindEndpoint || c.node.fetching.room(step.Kind, step.Endpoint) > 0 {
		return false
	}
	r.noRoom[step.Endpoint] = true
	return true
}

// ask claims of one step.
func (c *claimer) ask(ctx context.Context, r *round, step *workqueue.Runnable) error {
	c.node.cfg.Faults.Hit(fault.ClaimBefore)
	r.asked = append(r.asked, step.Ref())
	claimed, err := c.claim(ctx, step)
	r.taken += len(claimed.Slices)
	switch {
	case errors.Is(err, workqueue.ErrBusy):
		c.node.log.Debug("claim", zap.Error(err)) // its turn comes with the next round
		r.sooner(busyWait)
		return nil
	case err != nil:
		return err
	}
	r.sooner(claimed.Wait)
	switch claimed.Bound {
	case workqueue.BoundEndpoint:
		r.shut[step.Endpoint] = true
	case workqueue.BoundAuto:
		r.shutAuto[step.Endpoint] = true
	case workqueue.BoundStep:
		c.resting.rest(step.Ref(), claimed.Wait)
	}
	return nil
}

func (r *round) sooner(wait time.Duration) {
	if wait > 0 && (r.wait == 0 || wait < r.wait) {
		r.wait = wait
	}
}

// claim takes slices of a step and hands them to the publishers, or to those who fetch.
func (c *claimer) claim(ctx context.Context, step *workqueue.Runnable) (workqueue.Claimed, error) {
	n := c.node
	session := n.Session()
	params, known := c.params[step.Run]
	req := workqueue.ClaimRequest{
		Session: session, Run: step.Run, Step: step.Step, MaxSlices: n.cfg.ClaimSlices, MaxBytes: n.requestBytes(),
		LimitBytes: n.largestRequest(), Params: !known,
	}
	if step.Kind != workqueue.KindEndpoint {
		n.fetching.narrow(&req, step)
	}
	claimed, err := n.store.Claim(ctx, req)
	if err != nil {
		return claimed, err
	}
	if len(claimed.Slices) == 0 {
		n.stats.emptyClaims.Add(1)
		return claimed, nil
	}
	if !known {
		params = claimed.Params
		c.params.put(step.Run, params)
	}
	c.turns.took(step.Ref())
	n.cfg.Faults.Hit(fault.ClaimCommitted)
	n.stats.claims.Add(1)
	n.stats.slices.Add(int64(len(claimed.Slices)))
	for _, s := range claimed.Slices {
		a := assignment{s, session, s.Endpoint, params, claimed.Work, time.Now()}
		if step.Kind != workqueue.KindEndpoint {
			c.fetch(a)
			continue
		}
		select {
		case c.assigned <- a:
		case <-ctx.Done(): // the session's end hands them back
			return claimed, nil
		}
	}
	return claimed, nil
}
