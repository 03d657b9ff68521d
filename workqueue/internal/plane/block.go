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
