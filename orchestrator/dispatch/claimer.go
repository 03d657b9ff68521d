package dispatch

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/orchestrator/core"
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
	assigned := core.NewLanes[Assignment](d.cfg.ClaimSlices)
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

	assigned  core.Lanes[Assignment] // what services do
	fetch     func(Assignment)       // what the node does itself
	resting   rests[dispatch.StepRef]
	shut      rests[string] // endpoints
	shutAuto  rests[string] // endpoints, for their automatic steps
	params    paramCache
	turns     turns
	elsewhere elsewhere
}

func newClaimer(d *Dispatcher, assigned core.Lanes[Assignment], fetch func(Assignment)) *claimer {
	return &claimer{Dispatcher: d, assigned: assigned, fetch: fetch, resting: rests[dispatch.StepRef]{},
		shut: rests[string]{}, shutAuto: rests[string]{}, params: paramCache{}, turns: turns{}, elsewhere: elsewhere{}}
}

// idlePolls is how many times as long as Poll a node pauses that finds nothing to do, and that no one wakes.
const idlePolls = 4

// run takes work until ctx ends. It looks when woken, every Poll, when a rate lets more pass, and when slices come due
// that this node has scheduled; those of others wake no one.
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
		if len(c.elsewhere) > 0 && backoff.Sleep(ctx, core.ElsewherePause) != nil {
			return
		}
		idle := core.Jitter(poll)
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

// maxRemembered bounds each of a claimer's memories. One that is full is emptied: what it spared is then done again.
const maxRemembered = 1000

// maxRest bounds how long a step is not asked: its rate may be changed, or it may be held and go on.
const maxRest = 500 * time.Millisecond

// rests holds what a rate keeps waiting, with when it may have more: steps that wait for their own rates, endpoints
// that wait for theirs.
type rests[K comparable] map[K]time.Time

func (r rests[K]) rest(who K, wait time.Duration) {
	if wait <= 0 {
		return
	}
	if len(r) >= maxRemembered {
		clear(r)
	}
	r[who] = time.Now().Add(min(wait, maxRest))
}

// all returns those that rest still, and forgets the others.
func (r rests[K]) all(now time.Time) []K {
	var all []K
	for who, until := range r {
		if !until.After(now) {
			delete(r, who)
			continue
		}
		all = append(all, who)
	}
	return all
}

// next returns how long until the first of them may have more, or 0 when none rests.
func (r rests[K]) next(now time.Time) (wait time.Duration) {
	for _, until := range r {
		if left := until.Sub(now); left > 0 && (wait == 0 || left < wait) {
			wait = left
		}
	}
	return wait
}

// paramCache keeps the parameters of runs, which never change, from being read with every claim.
type paramCache map[workqueue.RunID][]byte

func (p paramCache) put(run workqueue.RunID, params []byte) {
	if len(p) >= maxRemembered {
		clear(p)
	}
	p[run] = params
}

// turns remembers when a step was last given slices. Among steps that have equally few out, who waited longest comes
// first: with a rate over all runs there are hardly ever slices out, and the oldest run would take all of it.
type turns map[dispatch.StepRef]time.Time

func (t turns) took(step dispatch.StepRef) {
	if len(t) >= maxRemembered {
		clear(t)
	}
	t[step] = time.Now()
}

func (t turns) order(page []dispatch.Runnable) {
	slices.SortStableFunc(page, func(a, b dispatch.Runnable) int {
		return cmp.Or(cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Live, b.Live),
			t[a.Ref()].Compare(t[b.Ref()]))
	})
}

// elsewhereWait is for how long a step may be the first at an endpoint of another node before this one takes part: that
// node is gone, or has more than it can take.
const elsewhereWait = 250 * time.Millisecond

// elsewhereBusy is how many times as long there may be work without a gap, one step after the other, until it does too.
const elsewhereBusy = 4

// elsewhere remembers since when there has been work at an endpoint of another node, and since when a step has been the
// first there.
type elsewhere map[string]firstThere

type firstThere struct {
	step        dispatch.StepRef
	since, busy time.Time
}

// seen takes in what a look found that left out some endpoints, and forgets all else.
func (e elsewhere) seen(now time.Time, found map[string]dispatch.StepRef, leftOut map[string]bool) {
	for endpoint := range e {
		if _, still := found[endpoint]; !still && !leftOut[endpoint] {
			delete(e, endpoint)
		}
	}
	for endpoint, step := range found {
		was, known := e[endpoint]
		switch {
		case !known:
			e[endpoint] = firstThere{step, now, now}
		case was.step != step:
			e[endpoint] = firstThere{step, now, was.busy}
		}
	}
}

// late returns the endpoints at which this node takes part.
func (e elsewhere) late(now time.Time) []string {
	var late []string
	for endpoint, first := range e {
		if now.Sub(first.since) >= elsewhereWait || now.Sub(first.busy) >= elsewhereBusy*elsewhereWait {
			late = append(late, endpoint)
		}
	}
	return late
}

// next returns how long until it takes part at the first of the others, or 0 when there is none.
func (e elsewhere) next(now time.Time) (wait time.Duration) {
	for _, first := range e {
		if left := first.since.Add(elsewhereWait).Sub(now); left > 0 && (wait == 0 || left < wait) {
			wait = left
		}
	}
	return wait
}
