package dispatch

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/orchestrator/internal/kernel"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
)

// Assignment is a claimed slice on its way into the stream.
type Assignment struct {
	workqueue.Slice
	Session  workqueue.SessionID
	Endpoint string
	Params   []byte             // of the run, as JSON; nil without
	Work     workqueue.StepWork // of the step
	Claimed  time.Time
}

// smallItems is of how many items a request is published beside the large ones, and before them.
const smallItems = 256

// Run is the way from PostgreSQL into the stream, or to what the node does itself: one claimer, a few
// publishers, one confirmer, and those who fetch. When ctx ends the claimer stops, and the others finish what it took.
func (d *Dispatcher) Run(ctx, draining context.Context) {
	assigned := kernel.NewLanes[Assignment](d.cfg.ClaimSlices)
	published := make(chan publication, MaxPendingPublishes)
	publishers := assigned.Work(d.cfg.Publishers, func(lane <-chan Assignment) {
		d.publishAssigned(draining, lane, published)
	})
	var confirmer sync.WaitGroup
	confirmer.Go(func() { d.confirm(draining, published) })
	endFetching := d.own.Start(draining)
	newClaimer(d, assigned, func(a Assignment) { d.own.Take(draining, a) }).run(ctx)
	assigned.Close()
	endFetching()
	publishers.Wait()
	close(published)
	confirmer.Wait()
}

// claimer takes work for its node. It is used by one goroutine. What it remembers of past claims spares others and
// decides nothing: limits are kept by the claims themselves.
type claimer struct {
	*Dispatcher

	assigned  kernel.Lanes[Assignment] // what services do
	fetch     func(Assignment)         // what the node does itself
	resting   rests[dispatch.StepRef]
	shut      rests[string] // endpoints
	shutAuto  rests[string] // endpoints, for their automatic steps
	params    paramCache
	turns     turns
	elsewhere elsewhere
}

func newClaimer(d *Dispatcher, assigned kernel.Lanes[Assignment], fetch func(Assignment)) *claimer {
	return &claimer{Dispatcher: d, assigned: assigned, fetch: fetch, resting: rests[dispatch.StepRef]{},
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
		c.own.Tend(ctx)
		r, looked := round{}, time.Now()
		var err error
		reachable := c.reachable(ctx)
		if reachable { // what cannot be published is not to be claimed
			r, err = c.round(ctx)
		}
		if err != nil && ctx.Err() == nil {
			n.Log.Warn("claim", zap.Error(err))
		}
		if r.taken > 0 && err == nil {
			poll = c.cfg.Poll
			continue
		}
		if len(c.elsewhere) > 0 && backoff.Sleep(ctx, kernel.ElsewherePause) != nil {
			return
		}
		idle := kernel.Jitter(poll)
		pause := c.pause(idle, looked, r)
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
		case <-n.Wakes:
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
