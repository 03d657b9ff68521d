package plane

import (
	"bytes"
	"cmp"

	"github.com/tranchehq/tranche/workqueue"
)

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
