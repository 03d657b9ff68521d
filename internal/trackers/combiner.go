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
	// maxCommits limits a node's concurrent transactions of acknowledgements. Two never concern the same batch, because
	// they would only block each other.
	maxCommits = 4
	// maxMerged and maxMasks limit the calls, and their groups, that share a transaction.
	maxMerged = 2048
	maxMasks  = 4096
)

// combiner merges concurrent acknowledgements into one transaction: a commit costs the same for one item as for
// thousands. Nothing waits to be merged: the first call starts immediately, and those that arrive meanwhile go
// together next.
type combiner struct {
	// commit acknowledges all or none in one transaction, and returns what each did.
	commit func(ctx context.Context, acks []tracker.ItemsAck) ([]tracker.Acked, error)

	mu      sync.Mutex
	waiting []*ackCall
	busy    map[uuid.UUID]bool // of transactions in progress
	commits int                // transactions in progress
	idle    *sync.Cond         // signaled when none are left
}

func newCombiner(commit func(context.Context, []tracker.ItemsAck) ([]tracker.Acked, error)) *combiner {
	c := &combiner{commit: commit, busy: map[uuid.UUID]bool{}}
	c.idle = sync.NewCond(&c.mu)
	return c
}

type ackCall struct {
	ctx  context.Context //nolint:containedctx // the call's own, to tell whether the caller still waits
	want *wanted
	done chan struct{}

	out trackerclient.BatchesAcked
	err error
}

// ack acknowledges the items of a call. If ctx ends first, they may be acknowledged anyway.
func (c *combiner) ack(ctx context.Context, want *wanted) (trackerclient.BatchesAcked, error) {
	call := &ackCall{ctx: ctx, want: want, done: make(chan struct{})}
	call.out.CompletedBatches = []string{}
	c.mu.Lock()
	c.waiting = append(c.waiting, call)
	if !c.blocked(call, nil) { // otherwise the end of the blocking transaction starts it
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

// take takes the calls of the next transaction: the oldest whose batches are in no other transaction. A blocked call
// keeps its place: no later call for the same batches overtakes it.
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

func (c *combiner) wait() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.commits > 0 {
		c.idle.Wait()
	}
}

// acknowledge commits calls together. A call that names missing items fails alone, and the rest is retried without
// it: nothing was changed.
func (c *combiner) acknowledge(calls []*ackCall) {
	for {
		calls = slices.DeleteFunc(calls, func(call *ackCall) bool {
			call.err = call.ctx.Err() // the caller has left
			return call.err != nil
		})
		if len(calls) == 0 {
			return
		}
		var acks []tracker.ItemsAck
		for _, call := range calls {
			acks = append(acks, call.want.acks...)
		}
		// A background context: the transaction must survive the departure of a caller.
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
		if len(left) == len(calls) { // no call named what was refused: it would be retried indefinitely
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
