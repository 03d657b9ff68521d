package plane

import (
	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
)

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
