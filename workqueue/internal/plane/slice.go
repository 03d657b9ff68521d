package plane

import (
	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
)

// HeldSlice is a slice whose row this transaction has locked.
type HeldSlice struct {
	workqueue.Slice
	Parent    workqueue.SliceID // zero for a cut
	Remaining bitfield.Set
	State     string
	Answered  int                  // slots that the final reply announced, or -1
	Failure   *workqueue.SlotError // what an earlier message of the reply said of the chunk as a whole
	Took      float64              // seconds that the service worked on it; 0: it did not say
	Policy    Policy
	MaxResult int  // bytes that a result of its step may have; 0: as many as are taken at all
	Guarded   bool // the first outcomes of its step are looked at
}

// Live reports whether an answer may come to the slice.
func (h *HeldSlice) Live() bool { return h.State == "claimed" || h.State == "sent" }

// Chunking is what bounds the chunks of a step. What is 0 bounds nothing.
type Chunking struct {
	Chunk   int  // what the step says; the upper bound of what is found
	Auto    bool // nodes find the size
	Learned int  // what they found
	Limit   int  // what the endpoint cannot take more of
	Rates   [3]float64
}

// Size is how many items a chunk has at the most: the step's size, within what was learned of the endpoint, and half a
// second's worth of each rate.
func (c *Chunking) Size() int {
	n := c.Chunk
	if c.Auto {
		learned := c.Learned
		if learned == 0 {
			learned = workqueue.DefaultAutoChunk
		}
		n = min(n, learned)
	}
	if c.Limit > 0 {
		n = min(n, c.Limit)
	}
	for _, rate := range c.Rates {
		if rate > 0 {
			n = int(min(float64(n), rate/2))
		}
	}
	return max(n, 1)
}

// AskedAt is an SQL expression on work_slice: when its request was sent, null if it was not. A reply can be recorded
// before the node has noted that it had sent the request.
const AskedAt = `coalesce(sent_at, CASE WHEN state = 'recorded' THEN greatest(created_at, not_before) END)`
