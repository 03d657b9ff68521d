package httpfetch

import (
	"context"
	"slices"
	"sync"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather/fetch"
)

// heldBytes bounds the results of a chunk when nobody takes them while the rest is at work.
const heldBytes = 64 << 20

// round asks for each item of a chunk with a request of its own.
type round struct {
	step  *step
	req   *fetch.Request
	share *share

	mu     sync.Mutex
	next   int // the item that is asked for next
	slots  []fetch.Slot
	held   int           // bytes in them
	downs  []failedItem  // requests of which nothing came of the service
	streak int           // such in a row
	most   int           // of them before the round is given up
	whole  *outcome      // why it was given up
	stop   chan struct{} // closed when it is
}

// failedItem is an item for which nothing came of the service.
type failedItem struct {
	ordinal int
	why     outcome
}

func newRound(s *step, req *fetch.Request, mine *share) *round {
	return &round{step: s, req: req, share: mine, most: max(3, s.Concurrency), stop: make(chan struct{})}
}

// run asks for all items. When nothing comes of the service any more it stops: then the chunk has failed, and what is
// left of it is not to blame.
func (r *round) run(ctx context.Context) ([]fetch.Slot, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var workers sync.WaitGroup
	for range min(r.step.Concurrency, len(r.req.Items)) {
		workers.Go(func() {
			for item := r.take(); item != nil; item = r.take() {
				out, ok := r.step.patiently(ctx, r.share, r.step.valuesOf(r.req, item))
				if !ok || out.failed() && ctx.Err() != nil {
					return // it was cut off, which is not the item's error
				}
				if r.done(item.Ordinal, out) {
					cancel()
				}
			}
		})
	}
	workers.Wait()
	return r.end(context.Cause(ctx))
}

// take returns the next item, or nil when the round is over.
func (r *round) take() *fetch.Item {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == len(r.req.Items) || r.whole != nil {
		return nil
	}
	r.next++
	return &r.req.Items[r.next-1]
}

// done keeps what came of an item, and reports whether the round is to be given up.
func (r *round) done(ordinal int, out outcome) (over bool) {
	slot := out.asSlot(ordinal)
	if !out.down && !out.failed() && r.req.Emit(slot) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.streak = 0
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.whole != nil {
		return false // what was under way was cut off, and says nothing
	}
	if !out.down {
		r.streak = 0
		r.slots = append(r.slots, slot)
		if r.held += len(slot.Data); r.held > heldBytes && r.next < len(r.req.Items) {
			full := failed(wire.CodeHeldTooLarge, false, "the chunk's results take more than %d bytes", heldBytes)
			r.whole = &full
		}
		return r.whole != nil
	}
	r.downs = append(r.downs, failedItem{ordinal, out})
	if r.streak++; r.streak >= r.most {
		r.whole = &out
	}
	return r.whole != nil
}

// end returns the slots. Requests of which nothing came of the service are errors of their items only when it was there
// for others.
func (r *round) end(cause error) ([]fetch.Slot, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.whole != nil {
		return r.slots, r.whole.asError()
	}
	if len(r.downs) == len(r.req.Items) {
		return nil, r.downs[0].why.asError()
	}
	for _, down := range r.downs {
		r.slots = append(r.slots, down.why.asSlot(down.ordinal))
	}
	slices.SortFunc(r.slots, func(a, b fetch.Slot) int { return a.Ordinal - b.Ordinal })
	return r.slots, cause
}
