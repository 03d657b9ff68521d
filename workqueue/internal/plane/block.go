package plane

import (
	"bytes"
	"cmp"
	"maps"
	"slices"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
)

// Compare orders blocks for locking.
func (id BlockID) Compare(other BlockID) int {
	return cmp.Or(bytes.Compare(id.Run[:], other.Run[:]), cmp.Compare(id.Step, other.Step),
		cmp.Compare(id.Block, other.Block))
}

// Columns returns blocks as a statement's arguments: runs, steps and numbers.
func Columns(blocks []BlockID) []any {
	runs, steps, numbers := make([]workqueue.RunID, len(blocks)), make([]workqueue.Step,
		len(blocks)), make([]workqueue.Block, len(blocks))
	for i, id := range blocks {
		runs[i], steps[i], numbers[i] = id.Run, id.Step, id.Block
	}
	return []any{runs, steps, numbers}
}

// BlockID names a block of a step of a run.
type BlockID struct {
	Run   workqueue.RunID
	Step  workqueue.Step
	Block workqueue.Block
}

// Outcome is the outcomes of some items of one block at one step.
type Outcome struct {
	Done, Failed bitfield.Set
	Bytes        int64 // of the results
}

// All is the items with an outcome.
func (o *Outcome) All() bitfield.Set { return o.Done.Or(o.Failed) }

// Sorted returns the members of a set in order.
func Sorted[T ~int16 | ~int32](set map[T]bool) []T {
	return slices.Sorted(maps.Keys(set))
}

// Envelope is roughly an item's overhead in a request beyond its payload.
const Envelope = 64

// HeldSlice is a slice whose row this transaction has locked.
type HeldSlice struct {
	workqueue.Slice
	Parent    workqueue.SliceID // zero for a cut
	Remaining bitfield.Set
	State     string
	Answered  int                  // slots announced by the final reply, or -1
	Failure   *workqueue.SlotError // what an earlier message of the reply said of the whole chunk
	Took      float64              // seconds that the service worked on it; 0: unknown
	Worked    float64              // seconds that a host or source took for all its requests; 0: neither
	Policy    Policy
	MaxResult int  // bytes of a result; 0: the general limit
	FailFast  bool // its step has an active fail-fast limit

	Done, Failed int // items that this transaction ended
}

// Live reports whether the slice can be answered.
func (h *HeldSlice) Live() bool { return h.State == "claimed" || h.State == "sent" }

// Chunking is the bounds of a step's chunks; 0 is no bound.
type Chunking struct {
	Chunk   int  // the step's setting; the upper bound if Auto
	Auto    bool // nodes find the size
	Learned int  // what they found
	Limit   int  // largest that the endpoint can take
	Rates   [3]float64
}

// Size is the most items of a chunk: the step's, within what was learned, and half a second of each rate.
func (c *Chunking) Size() int {
	n := c.Chunk
	if c.Auto {
		n = min(n, cmp.Or(c.Learned, workqueue.DefaultAutoChunk))
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

// AskedAt is an SQL expression on work_slice: when its request was sent, or null. A reply may come before the mark.
const AskedAt = `coalesce(sent_at, CASE WHEN state = 'recorded' THEN greatest(created_at, not_before) END)`

// Sample is a sample of a sequence of items: one from each stretch, so that every part is covered, at varying
// positions, so that a repeating pattern does not bias it. It is deterministic.
type Sample struct {
	stride int64 // items of a stretch; the last may have fewer
	total  int64
}

// NewSample samples about n of total items: one for each stretch of ⌈total/n⌉.
func NewSample(n int, total int64) Sample { return Sample{(total + int64(n) - 1) / int64(n), total} }

func (s Sample) place(stretch int64) int64 {
	first := stretch * s.stride
	return first + int64(Scatter(uint64(stretch))%uint64(min(s.stride, s.total-first)))
}

// Has reports whether an item is in the sample.
func (s Sample) Has(i int64) bool { return s.place(i/s.stride) == i }

// OfBlock returns the sampled items of a run's block.
func (s Sample) OfBlock(b workqueue.Block, size int) bitfield.Set {
	var chosen bitfield.Set
	first := int64(b) * bitfield.Size
	end := first + int64(size)
	for stretch := first / s.stride; stretch*s.stride < end; stretch++ {
		if at := s.place(stretch); at >= first && at < end {
			chosen.Add(int(at - first))
		}
	}
	return chosen
}

// Scatter maps neighboring numbers to unrelated values: the finalizer of SplitMix64 (Steele, Lea and Flood, 2014).
func Scatter(n uint64) uint64 {
	n += 0x9e3779b97f4a7c15
	n = (n ^ n>>30) * 0xbf58476d1ce4e5b9
	n = (n ^ n>>27) * 0x94d049bb133111eb
	return n ^ n>>31
}
