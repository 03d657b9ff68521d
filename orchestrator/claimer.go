package orchestrator

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
)

// assignment is a claimed slice on its way into the stream.
type assignment struct {
	workqueue.Slice
	session  workqueue.SessionID
	endpoint string
	params   []byte             // of the run, as JSON; nil without
	work     workqueue.StepWork // of the step
	claimed  time.Time
}

// smallItems is of how many items a request is published beside the large ones, and before them.
const smallItems = 256

// run is the way from PostgreSQL into the stream, or to what the node does itself: one claimer, a few
// publishers, one confirmer, and those who fetch. When ctx ends the claimer stops, and the others finish what it took.
func (d *dispatcher) run(ctx, draining context.Context) {
	assigned := newLanes[assignment](d.cfg.ClaimSlices)
	published := make(chan publication, maxPendingPublishes)
	publishers := assigned.work(d.cfg.Publishers, func(lane <-chan assignment) {
		d.publishAssigned(draining, lane, published)
	})
	var confirmer sync.WaitGroup
	confirmer.Go(func() { d.confirm(draining, published) })
	endFetching := d.own.start(draining)
	newClaimer(d, assigned, func(a assignment) { d.own.take(draining, a) }).run(ctx)
	assigned.close()
	endFetching()
	publishers.Wait()
	close(published)
	confirmer.Wait()
}

// claimer takes work for its node. It is used by one goroutine. What it remembers of past claims spares others and
// decides nothing: limits are kept by the claims themselves.
type claimer struct {
	*dispatcher

	assigned  lanes[assignment] // what services do
	fetch     func(assignment)  // what the node does itself
	resting   rests[dispatch.StepRef]
	shut      rests[string] // endpoints
	shutAuto  rests[string] // endpoints, for their automatic steps
	params    paramCache
	turns     turns
	elsewhere elsewhere
}

func newClaimer(d *dispatcher, assigned lanes[assignment], fetch func(assignment)) *claimer {
	return &claimer{dispatcher: d, assigned: assigned, fetch: fetch, resting: rests[dispatch.StepRef]{},
		shut: rests[string]{}, shutAuto: rests[string]{}, params: paramCache{},
		turns: turns{}, elsewhere: elsewhere{}}
}

// idlePolls is how many times as long as Poll a node pauses that finds nothing to do, and that nobody wakes.
const idlePolls = 4

// run takes work until ctx ends. It looks when woken, every Poll, when a rate lets more pass, and when slices come due
// that this node has scheduled; those of others wake nobody.
func (c *claimer) run(ctx context.Context) {
	n, poll := c.node, c.cfg.Poll
	for ctx.Err() == nil {
		c.own.tend(ctx)
		r, looked := round{}, time.Now()
		var err error
		reachable := c.reachable(ctx)
		if reachable { // what cannot be published is not to be claimed
			r, err = c.round(ctx)
		}
		if err != nil && ctx.Err() == nil {
			n.log.Warn("claim", zap.Error(err))
		}
		if r.taken > 0 && err == nil {
			poll = c.cfg.Poll
			continue
		}
		if len(c.elsewhere) > 0 && backoff.Sleep(ctx, elsewherePause) != nil {
			return
		}
		idle := jitter(poll)
		pause := c.pause(idle, looked, r)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-n.wakes:
			poll = c.cfg.Poll
		case <-timer.C:
			if pause == idle && err == nil && reachable {
				poll = min(2*poll, idlePolls*c.cfg.Poll)
			}
		}
		timer.Stop()
	}
}

// pause is how long a node that waits for idle rests after a look, unless something comes due before.
func (c *claimer) pause(idle time.Duration, looked time.Time, r round) time.Duration {
	pause := idle
	if r.wait > 0 {
		pause = min(pause, r.wait)
	}
	if due := c.after.NextDue(looked); due > 0 {
		pause = max(0, min(pause, due-time.Since(looked)))
	}
	return pause
}
