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

// Assignment is a claimed slice to be published or processed.
type Assignment struct {
	workqueue.Slice
	Session  workqueue.SessionID
	Endpoint string
	Params   []byte             // of the run, as JSON; nil: none
	Work     workqueue.StepWork // of the step
	Claimed  time.Time
}

// smallItems is the largest number of items of a request in the small lane.
const smallItems = 256

// builders is how many requests each lane builds concurrently: with two, a distant database delays them.
const builders = 4

// Run moves work into the stream, or to the node's own work. When ctx ends, the claimer stops and the rest finish.
func (d *Dispatcher) Run(ctx, draining context.Context) {
	assigned := core.NewLanes[Assignment](d.cfg.ClaimSlices)
	published := make(chan publication, MaxPendingPublishes)
	publishers := assigned.Work(builders, func(lane <-chan Assignment) {
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

// claimer claims work. It is for one goroutine. Its memory only saves queries: claims themselves enforce all limits.
type claimer struct {
	*Dispatcher

	assigned  core.Lanes[Assignment] // for services
	fetch     func(Assignment)       // for the node's own work
	resting   rests[dispatch.StepRef]
	shut      rests[string] // endpoints
	shutAuto  rests[string] // endpoints, for their automatic steps
	turns     turns
	elsewhere elsewhere
}

func newClaimer(d *Dispatcher, assigned core.Lanes[Assignment], fetch func(Assignment)) *claimer {
	return &claimer{Dispatcher: d, assigned: assigned, fetch: fetch, resting: rests[dispatch.StepRef]{},
		shut: rests[string]{}, shutAuto: rests[string]{}, turns: turns{}, elsewhere: elsewhere{}}
}

// idlePolls is the longest pause of an idle node, as a multiple of Poll.
const idlePolls = 4

// run polls when woken, every Poll, when a rate allows more, and when slices scheduled by this node come due.
func (c *claimer) run(ctx context.Context) {
	n, poll := c.node, c.cfg.Poll
	for ctx.Err() == nil {
		c.own.Tend(ctx)
		r, looked := round{}, time.Now()
		var err error
		reachable := c.reachable(ctx)
		if reachable { // never claim what cannot be published
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

// pause returns the time to the next poll: idle, or less if something comes due.
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

// maxRemembered limits each of a claimer's memories. A full one is emptied, which costs queries.
const maxRemembered = 1000

// maxRest limits how long a step is not tried: its rate may change, or a hold may end.
const maxRest = 500 * time.Millisecond

// rests is when steps and endpoints that wait for a rate may have more.
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

// all returns those still resting, and drops the rest.
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

// next returns how long until the first of them may have more, or 0 if none rests.
func (r rests[K]) next(now time.Time) (wait time.Duration) {
	for _, until := range r {
		if left := until.Sub(now); left > 0 && (wait == 0 || left < wait) {
			wait = left
		}
	}
	return wait
}

// turns is when a step last got slices: among steps with equally few in flight, the longest waiting is first. Under a
// rate over all runs hardly any are in flight, and the oldest run would take the whole rate.
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

// elsewhereWait is how long a step may be first at another node's endpoint before this node helps.
const elsewhereWait = 250 * time.Millisecond

// elsewhereBusy times elsewhereWait is how long such an endpoint may have work without a gap before this node helps.
const elsewhereBusy = 4

// elsewhere is since when another node's endpoint has had work, and since when its first step has been first.
type elsewhere map[string]firstThere

type firstThere struct {
	step        dispatch.StepRef
	since, busy time.Time
}

// seen takes the result of a search that skipped leftOut. Other endpoints without work are dropped.
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

func (e elsewhere) late(now time.Time) []string {
	var late []string
	for endpoint, first := range e {
		if now.Sub(first.since) >= elsewhereWait || now.Sub(first.busy) >= elsewhereBusy*elsewhereWait {
			late = append(late, endpoint)
		}
	}
	return late
}

// next returns how long until this node helps at the first endpoint, or 0 if none.
func (e elsewhere) next(now time.Time) (wait time.Duration) {
	for _, first := range e {
		if left := first.since.Add(elsewhereWait).Sub(now); left > 0 && (wait == 0 || left < wait) {
			wait = left
		}
	}
	return wait
}
