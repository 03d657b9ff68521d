package live

import "slices"

// cells is one byte for each item of a block. A block whose items are all alike takes one byte in all.
type cells struct {
	size  int
	bytes []byte // of length size, or 1
}

func (c *cells) at(i int) byte {
	if len(c.bytes) == 1 {
		return c.bytes[0]
	}
	return c.bytes[i]
}

// set keeps a copy of states.
func (c *cells) set(states []byte) {
	c.size = len(states)
	if len(states) == 0 {
		c.bytes = nil
		return
	}
	keep := states
	if uniform(states) {
		keep = states[:1]
	}
	if len(keep) != len(c.bytes) {
		c.bytes = slices.Clone(keep)
		return
	}
	copy(c.bytes, keep)
}

func uniform(states []byte) bool {
	for _, s := range states[1:] {
		if s != states[0] {
			return false
		}
	}
	return true
}

// Changes is a flat list of ordinal, count, state: so many items from that ordinal on are now in that state. Applied in
// order, from the first to the last.
type Changes []int32

const changeLen = 3 // numbers of one change

// difference appends what has changed from one look at a block to the next. Items between two changes that are in the
// same state join them: to say again where they are does no harm.
func (c *cells) difference(states []byte, first int32, changes Changes) Changes {
	for i := 0; i < len(states); {
		if i < c.size && c.at(i) == states[i] {
			i++
			continue
		}
		state, end := states[i], i+1
		for j := end; j < len(states) && states[j] == state; j++ {
			if j >= c.size || c.at(j) != state {
				end = j + 1
			}
		}
		changes = append(changes, first+int32(i), int32(end-i), int32(state))
		i = end
	}
	return changes
}

// whole appends where the items from lo to hi are.
func (c *cells) whole(lo, hi int, first int32, changes Changes) Changes {
	hi = min(hi, c.size)
	for i := lo; i < hi; {
		end := i + 1
		for end < hi && c.at(end) == c.at(i) {
			end++
		}
		changes = append(changes, first+int32(i), int32(end-i), int32(c.at(i)))
		i = end
	}
	return changes
}
