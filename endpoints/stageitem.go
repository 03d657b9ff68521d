package endpoints

import (
	"fmt"

	"go.uber.org/zap"

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
	core  flowItem
}

// Flowing is a StageItem of any flow: what a Target asks for and answers to.
type Flowing interface{ flowing() *flowItem }

func (i *StageItem[In, Out, State, Shared]) flowing() *flowItem { return &i.core }

// flowItem is a StageItem, whatever its types. Its fields are guarded by job.answers.mu.
type flowItem struct {
	at      int // in Stage.all
	ordinal int
	key     string
	parts   wire.Parts // in the first stage only
	work    *flowWork

	answered bool
	// dropped says that the library has answered, or given up, the item by itself: what the handler does with it then is
	// not worth a warning.
	dropped bool
	next    bool
	// asks is whom the item asks in this stage, waits in which requests that went.
	asks  []*asked
	few   [2]*asked // where asks begins
	waits []int
	// answers came to what the stage before has asked.
	answers []flowAnswer
}

// flowAnswer is the answer to one question.
type flowAnswer struct {
	target string
	slot   wire.Slot
}

// goes reports whether the item goes on to the next stage.
func (i *flowItem) goes() bool { return !i.answered && (i.next || len(i.asks) > 0) }

// asksOf returns what the item asks under a name in this stage, if anything. Called with answers.mu held.
func (i *flowItem) asksOf(name string) *asked {
	for _, asked := range i.asks {
		if asked.name == name {
			return asked
		}
	}
	return nil
}

// answer returns the answer of a target, if the stage before has asked it for the item.
func (i *flowItem) answer(target string) (slot wire.Slot, asked bool) {
	for n := range i.answers {
		if i.answers[n].target == target {
			return i.answers[n].slot, true
		}
	}
	return wire.Slot{}, false
}

// Reply answers the item with a result, and ends its way. A result that cannot be written as JSON, or is too large (as
// for Item.Reply), becomes an error slot. Only the first answer to an item counts; what the item has asked for in this
// stage is not asked.
func (i *StageItem[In, Out, State, Shared]) Reply(result Out) {
	a := &i.core.work.job.answers
	a.mu.Lock()
	defer a.mu.Unlock()
	if !i.core.claim() {
		return
	}
	i.stage.out = result // pointing there, and not to result, keeps result off the heap
	if err := a.result(i.Ordinal, &i.stage.out); err != nil {
		a.fail(i.Ordinal, wire.NewSlotError(wire.CodeBadResult, fmt.Sprintf("the result cannot be written: %v", err), false))
	}
}

// Fail answers the item with an error that trying again would not help. See the function Fail.
func (i *StageItem[In, Out, State, Shared]) Fail(code, format string, args ...any) {
	i.core.fail(wire.NewSlotError(code, fmt.Sprintf(format, args...), false))
}

// Retry answers the item with an error that may pass. See the function Retry.
func (i *StageItem[In, Out, State, Shared]) Retry(code, format string, args ...any) {
	i.core.fail(wire.NewSlotError(code, fmt.Sprintf(format, args...), true))
}

// Next has the item go on to the next stage without asking for anything. An item that asks needs no Next.
func (i *StageItem[In, Out, State, Shared]) Next() {
	a := &i.core.work.job.answers
	a.mu.Lock()
	defer a.mu.Unlock()
	if i.core.open("went on") && i.core.hasNext() {
		i.core.next = true
	}
}

// Info identifies the item.
func (i *StageItem[In, Out, State, Shared]) Info() ItemInfo { return i.core.info() }

func (i *flowItem) info() ItemInfo {
	request := i.work.job.request
	return ItemInfo{Meta: request.Meta, Ordinal: i.ordinal, Key: i.key, params: request.Params, parts: i.parts}
}

// fail answers with an error of the handler.
func (i *flowItem) fail(e *wire.SlotError) {
	a := &i.work.job.answers
	a.mu.Lock()
	defer a.mu.Unlock()
	if i.claim() {
		a.fail(i.ordinal, e)
	}
}

// giveUp answers with an error of the library's. Called with answers.mu held.
func (i *flowItem) giveUp(e *wire.SlotError) {
	if i.answered {
		return
	}
	i.answered, i.dropped = true, true
	i.work.job.answers.fail(i.ordinal, e)
}

// claim reports whether the item may be answered now, and notes that it is. Called with answers.mu held.
func (i *flowItem) claim() bool {
	if !i.open("was answered") {
		return false
	}
	i.answered = true
	return true
}

// open reports whether the handler may still do something with the item. Called with answers.mu held.
func (i *flowItem) open(what string) bool {
	log := i.work.job.log
	switch {
	case i.work.job.answers.closed:
		log.Warn("an item "+what+" after the stage had returned; that is dropped", zap.Int("ordinal", i.ordinal))
	case i.dropped:
	case i.answered:
		log.Warn("an item "+what+" after it had been answered; the first answer stands", zap.Int("ordinal", i.ordinal))
	default:
		return true
	}
	return false
}

// hasNext fails the item when this is the last stage. Called with answers.mu held.
func (i *flowItem) hasNext() bool {
	w := i.work
	if w.stage+1 < w.flow.stages {
		return true
	}
	i.giveUp(wire.NewSlotError(wire.CodeNoNextStage,
		fmt.Sprintf("stage %d is the last one of flow %s, and the item asks or goes "+
			"on in it", w.stage, w.flow.server.name), false))
	return false
}
