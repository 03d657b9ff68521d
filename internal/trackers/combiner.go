package trackers

import (
	"context"
	"slices"
	"sync"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/endpoints/trackerclient"
)

const (
	// maxCommits is how many transactions of acknowledgements a node has open at once. Two of them never concern the same
	// batch: they would only wait for each other.
	maxCommits = 4
	// maxMerged and maxMasks bound the calls, and the groups that they name, that share a transaction.
	maxMerged = 2048
	maxMasks  = 4096
)

// combiner merges acknowledgements that come at the same time into one transaction: a commit costs the same for one
// item as for thousands. Nothing waits for company: the first call begins at once, and those that come while it is
// in progress go together next.
type combiner struct {
	// commit acknowledges in one transaction, all or none, and says of each what it did itself.
	commit func(ctx context.Context, acks []tracker.ItemsAck) ([]tracker.Acked, error)

	mu      sync.Mutex
	waiting []*ackCall
	busy    map[uuid.UUID]bool // batches of transactions in progress
	commits int                // of them
	idle    *sync.Cond         // told when there are none
}

func newCombiner(commit func(context.Context, []tracker.ItemsAck) ([]tracker.Acked, error)) *combiner {
	c := &combiner{commit: commit, busy: map[uuid.UUID]bool{}}
	c.idle = sync.NewCond(&c.mu)
	return c
}

// ackCall is a call that waits for its acknowledgement.
type ackCall struct {
	ctx  context.Context //nolint:containedctx // it ends with the call, and tells whether anybody still waits
	want *wanted
	done chan struct{}

	out trackerclient.BatchesAcked
	err error
}

// ack acknowledges what a call wants. When ctx ends first, it may be done anyway.
func (c *combiner) ack(ctx context.Context, want *wanted) (trackerclient.BatchesAcked, error) {
	call := &ackCall{ctx: ctx, want: want, done: make(chan struct{})}
	call.out.CompletedBatches = []string{}
	c.mu.Lock()
	c.waiting = append(c.waiting, call)
	if !c.blocked(call, nil) { // else whoever blocks it looks again when it ends
		c.begin()
	}
	c.mu.Unlock()
	select {
	case <-call.done:
		return call.out, call.err
	case <-ctx.Done():
		return trackerclient.BatchesAcked{}, ctx.Err()
	}
}

// begin starts as many transactions as there is reason and room for. The caller holds the lock.
func (c *combiner) begin() {
	for c.commits < maxCommits {
		calls := c.take()
		if len(calls) == 0 {
			return
		}
		c.commits++
		go c.run(calls)
	}
}

// take chooses the calls of the next transaction: the oldest ones whose batches are in none that is in progress. A call
// that has to wait holds its place: none that came later for the same batches passes it.
func (c *combiner) take() (calls []*ackCall) {
	held, masks := map[uuid.UUID]bool{}, 0
	rest := c.waiting[:0]
	for i, call := range c.waiting {
		groups := call.want.groups()
		if len(calls) > 0 && (masks+groups > maxMasks || len(calls) == maxMerged) {
			rest = append(rest, c.waiting[i:]...)
			break
		}
		if c.blocked(call, held) {
			for i := range call.want.acks {
				held[call.want.acks[i].Batch] = true
			}
			rest = append(rest, call)
			continue
		}
		calls, masks = append(calls, call), masks+groups
	}
	clear(c.waiting[len(rest):])
	c.waiting = rest
	for _, call := range calls {
		c.mark(call, true)
	}
	return calls
}

func (c *combiner) blocked(call *ackCall, held map[uuid.UUID]bool) bool {
	return slices.ContainsFunc(call.want.acks, func(a tracker.ItemsAck) bool {
		return c.busy[a.Batch] || held[a.Batch]
	})
}

func (c *combiner) mark(call *ackCall, busy bool) {
	for i := range call.want.acks {
		if busy {
			c.busy[call.want.acks[i].Batch] = true
		} else {
			delete(c.busy, call.want.acks[i].Batch)
		}
	}
}

// run is a transaction of some calls, and tells each what became of it.
func (c *combiner) run(calls []*ackCall) {
	c.acknowledge(slices.Clone(calls))
	for _, call := range calls {
		close(call.done)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, call := range calls {
		c.mark(call, false)
	}
	c.commits--
	c.begin()
	if c.commits == 0 {
		c.idle.Broadcast()
	}
}

// wait returns once no transaction is in progress.
func (c *combiner) wait() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.commits > 0 {
		c.idle.Wait()
	}
}

// acknowledge commits calls together. One that names what is not there fails by itself, and the others are retried
// without it: nothing was changed.
func (c *combiner) acknowledge(calls []*ackCall) {
	for {
		calls = slices.DeleteFunc(calls, func(call *ackCall) bool {
			call.err = call.ctx.Err() // no one waits for it any more
			return call.err != nil
		})
		if len(calls) == 0 {
			return
		}
		var acks []tracker.ItemsAck
		for _, call := range calls {
			acks = append(acks, call.want.acks...)
		}
		// The context is no one's: when one of the callers leaves, it is still the others'.
		done, err := c.commit(context.Background(), acks)
		bad := misfitOf(err)
		switch {
		case err == nil:
			share(calls, done)
			return
		case bad == nil:
			fail(calls, err)
			return
		}
		left := slices.DeleteFunc(slices.Clone(calls), func(call *ackCall) bool {
			if blamed := call.want.blame(bad); blamed != nil {
				call.err = blamed
			}
			return call.err != nil
		})
		if len(left) == len(calls) { // no one asked for what was refused: it would be tried indefinitely
			fail(calls, err)
			return
		}
		calls = left
	}
}

func fail(calls []*ackCall, err error) {
	for _, call := range calls {
		call.err = err
	}
}

// share tells each call what it did.
func share(calls []*ackCall, done []tracker.Acked) {
	for _, call := range calls {
		for i, did := range done[:len(call.want.acks)] {
			call.out.Newly += int64(did.Newly)
			if did.Completed {
				call.out.CompletedBatches = append(call.out.CompletedBatches, call.want.acks[i].Batch.String())
			}
		}
		done = done[len(call.want.acks):]
	}
}
