package live

import (
	"cmp"
	"slices"
	"time"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
)

// view is a step as somebody looks at it, or all steps of a run together.
type view struct {
	loaded   bool
	since    uint64 // the changes after this one are known
	watchers int
	idle     time.Time // when the last watcher left
	blocks   []cells
}

func first(b workqueue.Block) int32 { return int32(b) * bitfield.Size }

// take compares a block with what it was, keeps it, and appends what has changed.
func (v *view) take(block workqueue.Block, states []byte, changes Changes) Changes {
	for int(block) >= len(v.blocks) {
		v.blocks = append(v.blocks, cells{})
	}
	c := &v.blocks[block]
	if v.loaded {
		changes = c.difference(states, first(block), changes)
	}
	c.set(states)
	return changes
}

// whole appends where all items of a block are.
func (v *view) whole(block workqueue.Block, changes Changes) Changes {
	if int(block) >= len(v.blocks) {
		return changes
	}
	return v.blocks[block].whole(0, bitfield.Size, first(block), changes)
}

// merge says once where the items are that several changes were about, as of now.
func (v *view) merge(all []Changes) Changes {
	type span struct{ lo, hi int32 }
	var spans []span
	for _, changes := range all {
		for i := 0; i < len(changes); i += changeLen {
			spans = append(spans, span{changes[i], changes[i] + changes[i+1]})
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.lo, b.lo) })
	var out Changes
	for i := 0; i < len(spans); {
		s := spans[i]
		for i++; i < len(spans) && spans[i].lo <= s.hi; i++ {
			s.hi = max(s.hi, spans[i].hi)
		}
		for s.lo < s.hi {
			block := workqueue.Block(s.lo / bitfield.Size)
			from := s.lo - first(block)
			to := min(s.hi-first(block), bitfield.Size)
			if int(block) < len(v.blocks) {
				out = v.blocks[block].whole(int(from), int(to), first(block), out)
			}
			s.lo = first(block) + to
		}
	}
	return out
}
