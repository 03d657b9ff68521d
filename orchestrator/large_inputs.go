package orchestrator

import (
	"context"
	"fmt"
	"time"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// largeInputs are items of a slice that have a part which did not fit a message. No step sees those: not a service,
// whose request could not carry them, and not a step of the node's own, many of which are worked on at once.
type largeInputs struct {
	items   bitfield.Set
	refused []settle.Slot
}

// take reports whether an item is one, and remembers it.
func (l *largeInputs) take(a *assignment, in *dispatch.Input) bool {
	for i := range in.Parts {
		part := &in.Parts[i]
		if part.Large == 0 {
			continue
		}
		_, bit := in.Ordinal.Block()
		l.items.Add(bit)
		name := a.work.Inputs[i].Name
		l.refused = append(l.refused, settle.Slot{Ordinal: in.Ordinal, Err: &workqueue.SlotError{Code: CodeItemTooLarge,
			Message: fmt.Sprintf("the part of step %s has %d bytes, and what did not fit a message is no input of another step "+
				"(%s): leave %s out of its inputs, and have its service fetch the result from the API by the item's key", name,
				part.Large, a.work.Name, name)}})
		return true
	}
	return false
}

// refuse fails the items of a slice whose parts are too large, and has the others claimed anew.
func (l *largeInputs) refuse(ctx context.Context, n *kernel, after Seer, a assignment) error {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	id := a.ID
	if others := a.Mask.AndNot(l.items); !others.Empty() {
		piece, err := n.settling.Split(ctx, a.session, a.ID, []bitfield.Set{l.items, others}, dispatch.DefaultClaimTTL)
		if err != nil || piece == nil {
			return err
		}
		n.stats.splits.Add(1)
		id = piece.ID
		defer n.Wake()
	}
	out, err := n.settling.Record(ctx, []settle.Answer{{Slice: id, Endpoint: a.endpoint, Service: "tranche",
		Answered: len(l.refused), Slots: l.refused}})
	if err != nil {
		return err
	}
	after.Seen(out, time.Now())
	return nil
}
