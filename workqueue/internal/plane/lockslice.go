package plane

import (
	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
)

// HeldSlice is a slice whose row this transaction has locked.
type HeldSlice struct {
	workqueue.Slice
	Parent    workqueue.SliceID // zero for a cut
	Remaining bitfield.Set
	State     string
	Answered  int                  // slots that the final reply announced, or -1
	Failure   *workqueue.SlotError // what an earlier message of the reply said of the chunk as a whole
	Took      float64              // seconds that the service worked on it; 0: it did not say
	Policy    Policy
}

func (h *HeldSlice) Live() bool { return h.State == "claimed" || h.State == "sent" }
