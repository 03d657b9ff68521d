package flow

import (
	"fmt"
	"slices"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// Merge puts the replies into the items of the stage that they lead to. An item whose question has no answer, or an
// error that its target does not keep, is answered or given up, and does not come to the stage.
func (w *Work) Merge(from *Suspended, replies []StageReply) {
	a := &w.Job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	for r := range from.Requests {
		w.mergeRequest(from, r, replies)
	}
	left := w.Here[:0:0]
	for _, item := range w.Here {
		if !item.answered && !item.dropped {
			left = append(left, item)
		}
	}
	w.Here = left
	w.Sheet.Show(left)
}

// mergeRequest deals with the reply to one request. Called with answers.mu held.
func (w *Work) mergeRequest(from *Suspended, r int, replies []StageReply) {
	target := from.Requests[r]
	seen := make([]bool, len(w.Here))
	var failure *wire.SlotError
	foreign := 0
	for _, reply := range replies {
		if reply.Request != r {
			continue
		}
		if failure == nil {
			failure = reply.Failure
		}
		for i := range reply.Slots {
			n, asked := from.find(r, reply.Slots[i].Ordinal)
			switch {
			case !asked:
				foreign++
			case !seen[n]:
				seen[n] = true
				w.Here[n].take(target, reply.Slots[i])
			}
		}
	}
	if foreign > 0 {
		w.Job.Log.Warn("a reply has slots that were not asked for; they are dropped",
			zap.String("callee", target.Endpoint), zap.Int("slots", foreign))
	}
	w.missing(from, r, seen, failure)
}

// take gives the item the answer of a target.
func (i *Item) take(target suspendedRequest, slot wire.Slot) {
	if slot.Err != nil && !target.Keep {
		i.giveUp(slot.Err)
		return
	}
	i.answers = append(i.answers, flowAnswer{target.Target, slot})
}

// missing deals with the items that the reply has no slot for: its failure speaks for them, or they were left out.
func (w *Work) missing(from *Suspended, r int, seen []bool, failure *wire.SlotError) {
	target := from.Requests[r]
	if failure != nil {
		failure = wire.NewSlotError(failure.Code, fmt.Sprintf("%s: %s", target.Target, failure.Message), failure.Retry)
	}
	gone := false
	for n, item := range w.Here {
		switch {
		case seen[n] || !slices.Contains(from.Items[n].Waits, r):
		case failure != nil:
			item.dropped, gone = true, true
		default:
			item.take(target, wire.Slot{Ordinal: item.Ordinal, Err: wire.NewSlotError(wire.CodeUnanswered, fmt.Sprintf(
				"endpoint %s has left the item out of its reply", target.Endpoint), true)})
		}
	}
	if gone {
		w.pass(failure)
	}
}
