package plane

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
)

// Compare orders blocks as they are locked.
func (id BlockID) Compare(other BlockID) int {
	return cmp.Or(bytes.Compare(id.Run[:], other.Run[:]), cmp.Compare(id.Step, other.Step),
		cmp.Compare(id.Block, other.Block))
}

// Columns are blocks as statements take them: runs, steps and numbers.
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

// Outcome is what items of one block got at one step.
type Outcome struct {
	Done, Failed bitfield.Set
	Bytes        int64 // of the results
}

// All are the items that an outcome is known of.
func (o *Outcome) All() bitfield.Set { return o.Done.Or(o.Failed) }

// Sorted returns what is in a set, in its order.
func Sorted[T ~int16 | ~int32](set map[T]bool) []T {
	list := make([]T, 0, len(set))
	for v := range set {
		list = append(list, v)
	}
	slices.Sort(list)
	return list
}

// Envelope is what an item takes in a request beside its payload, roughly.
const Envelope = 64

// HeldSlice is a slice whose row this transaction has locked.
type HeldSlice struct {
	workqueue.Slice
	Parent    workqueue.SliceID // zero for a cut
	Remaining bitfield.Set
	State     string
	Answered  int                  // slots that the final reply announced, or -1
	Failure   *workqueue.SlotError // what an earlier message of the reply said of the chunk as a whole
	Took      float64              // seconds that the service worked on it; 0: it did not say
	Worked    float64              // seconds that a host or source took for all requests of it; 0: it is neither
	Policy    Policy
	MaxResult int  // bytes that a result of its step may have; 0: as many as are taken at all
	FailFast  bool // the first outcomes of its step are looked at
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

// Size is how many items a chunk has at most: the step's size, within what was learned of the endpoint, and half a
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

// Sample is a sample of a row of items: one of each stretch of it, so that no part is left out, and not always the same
// one, so that a sample of items that repeat in a pattern is none of that pattern. It is the same each time.
type Sample struct {
	stride int64 // items of a stretch; the last may have fewer
	total  int64
}

// NewSample samples about n of so many items: as many as there are stretches of ⌈total/n⌉.
func NewSample(n int, total int64) Sample { return Sample{(total + int64(n) - 1) / int64(n), total} }

// place returns the item of a stretch that belongs to the sample.
func (s Sample) place(stretch int64) int64 {
	first := stretch * s.stride
	return first + int64(scatter(uint64(stretch))%uint64(min(s.stride, s.total-first)))
}

// Has reports whether an item is of the sample.
func (s Sample) Has(i int64) bool { return s.place(i/s.stride) == i }

// OfBlock returns the items of a run's block that belong to the sample of the run.
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

// scatter gives neighbouring numbers values that have nothing in common: the finalizer of SplitMix64 (Steele, Lea and
// Flood, "Fast splittable pseudorandom number generators", 2014).
func scatter(n uint64) uint64 {
	n += 0x9e3779b97f4a7c15
	n = (n ^ n>>30) * 0xbf58476d1ce4e5b9
	n = (n ^ n>>27) * 0x94d049bb133111eb
	return n ^ n>>31
}
