package workqueue

// chunking is what bounds the chunks of a step. What is 0 bounds nothing.
type chunking struct {
	chunk   int  // what the step says; the upper bound of what is found
	auto    bool // nodes find the size
	learned int  // what they found
	limit   int  // what the endpoint cannot take more of
	rates   [3]float64
}

// size is how many items a chunk has at the most: the step's size, within what was learned of the endpoint, and half a
// second's worth of each rate.
func (c *chunking) size() int {
	n := c.chunk
	if c.auto {
		learned := c.learned
		if learned == 0 {
			learned = DefaultAutoChunk
		}
		n = min(n, learned)
	}
	if c.limit > 0 {
		n = min(n, c.limit)
	}
	for _, rate := range c.rates {
		if rate > 0 {
			n = int(min(float64(n), rate/2))
		}
	}
	return max(n, 1)
}
