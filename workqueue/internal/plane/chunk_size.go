package plane

import (
	"github.com/tranchehq/tranche/workqueue"
)

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
