package plane

import (
	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
)

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

func (o *Outcome) All() bitfield.Set { return o.Done.Or(o.Failed) }
