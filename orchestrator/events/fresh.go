package events

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/internal/fault"
	"github.com/tranchehq/tranche/orchestrator/internal/kernel"
	"github.com/tranchehq/tranche/workqueue"
)

// maxFresh bounds the events that are published without a look at the outbox. The outbox has the others.
const maxFresh = 1000

// freshAtOnce is how many of them wait for NATS at a time.
const freshAtOnce = 16

// freshEvents are completions that this node has just committed. It knows what they say, and publishes them at once:
// who waits for one need not wait until the outbox was read. The outbox stays the truth. What is lost here, with the
// node or because NATS did not take it, is found there, and has the same id.
//
// Who listens over core NATS gets what is published twice twice. So what is in here the outbox's reader passes over,
// and what it had published before it came is not published again.
type freshEvents struct {
	mu        sync.Mutex
	events    []freshEvent
	published []uuid.UUID            // that are to be marked
	held      map[uuid.UUID]struct{} // all of these, and what is being published
	read      [maxFresh]uuid.UUID    // what was published from the outbox last
	next      int                    // place in read
	come      chan struct{}
}

// freshEvent is an event, and when what brought it about came; zero when nobody waits for the time between.
type freshEvent struct {
	workqueue.Event

	came time.Time
}

func newFreshEvents() *freshEvents {
	return &freshEvents{held: map[uuid.UUID]struct{}{}, come: make(chan struct{}, 1)}
}

func (f *freshEvents) add(e freshEvent) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.events) < maxFresh && !slices.Contains(f.read[:], e.ID) {
		f.events = append(f.events, e)
		f.held[e.ID] = struct{}{}
	}
	kernel.Signal(f.come)
}

// passes reports whether the outbox's reader passes an event over, and else that it is published from there.
func (f *freshEvents) passes(id uuid.UUID) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, held := f.held[id]; held {
		return true
	}
	f.read[f.next] = id
	f.next = (f.next + 1) % maxFresh
	return false
}

func (f *freshEvents) take() []freshEvent {
	f.mu.Lock()
	defer f.mu.Unlock()
	events := f.events
	f.events = nil
	return events
}

// end notes what has been published, or leaves it to the outbox's reader.
func (f *freshEvents) end(id uuid.UUID, published bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if published {
		f.published = append(f.published, id)
	} else {
		delete(f.held, id)
	}
}

// mark calls f with what has been published. Until then the outbox's reader, which calls it, passes it over.
func (f *freshEvents) mark(mark func([]uuid.UUID) error) error {
	f.mu.Lock()
	ids := f.published
	f.published = nil
	f.mu.Unlock()
	err := mark(ids)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, id := range ids {
		delete(f.held, id)
	}
	return err
}

// RunFresh publishes what this node has just committed, until ctx ends. [publisher.run] marks it; what NATS
// did not take the leader finds in the outbox.
func (p *Publisher) RunFresh(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.fresh.come:
		}
		var publishing sync.WaitGroup
		events := p.fresh.take()
		for some := range slices.Chunk(events, max(1, (len(events)+freshAtOnce-1)/freshAtOnce)) {
			publishing.Go(func() {
				for i := range some {
					p.publishNow(ctx, &some[i])
				}
			})
		}
		publishing.Wait()
		p.node.PublishEvents()
	}
}

func (p *Publisher) publishNow(ctx context.Context, e *freshEvent) {
	published := p.publishEvent(ctx, &e.Event) == nil // the next look at the outbox says why not
	if published {
		if !e.came.IsZero() {
			p.meter.Announced(time.Since(e.came))
		}
		p.node.Faults.Hit(fault.EventPublished)
	}
	p.fresh.end(e.ID, published)
}
