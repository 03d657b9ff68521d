package endpoints

import (
	"fmt"

	"github.com/tranchehq/tranche/endpoints/internal/flow"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// StageItem is one item in a stage of a flow. It has to be answered, to ask (with a Target) or to go on (Next): an item
// that does none of these is left out, and will be tried again.
type StageItem[In, Out, State, Shared any] struct {
	Ordinal int    // its place in the run, from 0
	Key     string // the caller's id of it
	In      In     // its payload, in the first stage only
	State   State  // what it has in the next stage, too

	stage *Stage[In, Out, State, Shared]
	core  flow.Item
}

// Flowing is a StageItem of any flow: what a Target asks for and answers to.
type Flowing interface{ flowing() *flow.Item }

func (i *StageItem[In, Out, State, Shared]) flowing() *flow.Item { return &i.core }

// Reply answers the item with a result, and ends its way. A result that cannot be written as JSON, or is too large (as
// for Item.Reply), becomes an error slot. Only the first answer to an item counts; what the item has asked for in this
// stage is not asked.
func (i *StageItem[In, Out, State, Shared]) Reply(result Out) {
	a := &i.core.Work.Job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if !i.core.Claim() {
		return
	}
	i.stage.out = result // pointing there, and not to result, keeps result off the heap
	if err := a.Result(i.Ordinal, &i.stage.out); err != nil {
		a.Fail(i.Ordinal, wire.NewSlotError(wire.CodeBadResult, fmt.Sprintf("the result cannot be written: %v", err), false))
	}
}

// Fail answers the item with an error that trying again would not help. See the function Fail.
func (i *StageItem[In, Out, State, Shared]) Fail(code, format string, args ...any) {
	i.core.Fail(wire.NewSlotError(code, fmt.Sprintf(format, args...), false))
}

// Retry answers the item with an error that may pass. See the function Retry.
func (i *StageItem[In, Out, State, Shared]) Retry(code, format string, args ...any) {
	i.core.Fail(wire.NewSlotError(code, fmt.Sprintf(format, args...), true))
}

// Next has the item go on to the next stage without asking for anything. An item that asks needs no Next.
func (i *StageItem[In, Out, State, Shared]) Next() {
	a := &i.core.Work.Job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if i.core.Open("went on") && i.core.HasNext() {
		i.core.Next = true
	}
}

// Info identifies the item.
func (i *StageItem[In, Out, State, Shared]) Info() ItemInfo { return infoOf(i.core.Facts()) }
