package dispatch

import (
	"context"
	"fmt"
	"time"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/orchestrator/internal/kernel"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// LargeInputs are items of a slice that have a part which did not fit a message. No step sees those: not a service,
// whose request could not carry them, and not a step of the node's own, many of which are worked on at once.
type LargeInputs struct {
	Items   bitfield.Set
	refused []settle.Slot
}

// Take reports whether an item is one, and remembers it.
func (l *LargeInputs) Take(a *Assignment, in *dispatch.Input) bool {
	for i := range in.Parts {
		part := &in.Parts[i]
		if part.Large == 0 {
			continue
		}
		_, bit := in.Ordinal.Block()
		l.Items.Add(bit)
		name := a.Work.Inputs[i].Name
		l.refused = append(l.refused, settle.Slot{Ordinal: in.Ordinal, Err: &workqueue.SlotError{
			Code: kernel.CodeItemTooLarge,
			Message: fmt.Sprintf("the part of step %s has %d bytes, and what did not fit a message is no input of another step "+
				"(%s): leave %s out of its inputs, and have its service fetch the result from the API by the item's key", name,
				part.Large, a.Work.Name, name)}})
		return true
	}
	return false
}

// Refuse fails the items of a slice whose parts are too large, and has the others claimed anew.
func (l *LargeInputs) Refuse(ctx context.Context, n *kernel.Kernel, after kernel.Seer, a Assignment) error {
	ctx, cancel := context.WithTimeout(ctx, kernel.ReadTimeout)
	defer cancel()
	id := a.ID
	if others := a.Mask.AndNot(l.Items); !others.Empty() {
		piece, err := n.Settling.Split(ctx, a.Session, a.ID, []bitfield.Set{l.Items, others}, dispatch.DefaultClaimTTL)
		if err != nil || piece == nil {
			return err
		}
		n.Stats.Splits.Add(1)
		id = piece.ID
		defer n.Wake()
	}
	out, err := n.Settling.Record(ctx, []settle.Answer{{Slice: id, Endpoint: a.Endpoint, Service: "tranche",
		Answered: len(l.refused), Slots: l.refused}})
	if err != nil {
		return err
	}
	after.Seen(out, time.Now())
	return nil
}
