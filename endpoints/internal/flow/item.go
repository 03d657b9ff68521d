package flow

import (
	"fmt"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// Item is a StageItem, whatever its types. Its fields are guarded by job.answers.mu.
type Item struct {
	At      int // in Stage.all
	Ordinal int
	Key     string
	Parts   wire.Parts // in the first stage only
	Work    *Work

	answered bool
	// dropped says that the library has answered, or given up, the item by itself: what the handler does with it then is
	// not worth a warning.
	dropped bool
	Next    bool
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
func (i *Item) goes() bool { return !i.answered && (i.Next || len(i.asks) > 0) }

// asksOf returns what the item asks under a name in this stage, if anything. Called with answers.mu held.
func (i *Item) asksOf(name string) *asked {
	for _, asked := range i.asks {
		if asked.name == name {
			return asked
		}
	}
	return nil
}

// Answer returns the answer of a target, if the stage before has asked it for the item.
func (i *Item) Answer(target string) (slot wire.Slot, asked bool) {
	for n := range i.answers {
		if i.answers[n].target == target {
			return i.answers[n].slot, true
		}
	}
	return wire.Slot{}, false
}

// Ask notes a question to a target for the item.
func (i *Item) Ask(name, endpoint string, keep bool, query any) {
	a := &i.Work.Job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if !i.Open("asked") || !i.HasNext() || !i.Work.deepEnough(i) {
		return
	}
	if before := i.asksOf(name); before != nil && before.endpoint != endpoint {
		i.giveUp(wire.NewSlotError(wire.CodeBadQuery,
			fmt.Sprintf("the item asks both endpoint %s and endpoint %s under the name %s; "+
				"give one target another name, by As", before.endpoint, endpoint, name), false))
		return
	} else if before != nil {
		i.Work.Job.Log.Warn("an item asked a target twice in one stage; the first question stands",
			zap.Int("ordinal", i.Ordinal), zap.String("target", name))
		return
	}
	asked := i.Work.askedOf(name, endpoint, keep)
	start := asked.queries.Len()
	if err := wire.EncodePayload(&asked.queries, query); err != nil {
		asked.queries.Truncate(start)
		i.giveUp(wire.NewSlotError(wire.CodeBadQuery, fmt.Sprintf("the question to %s cannot be written: %v", name, err),
			false))
		return
	}
	asked.items = append(asked.items, askedItem{i, start, asked.queries.Len()})
	if i.asks == nil {
		i.asks = i.few[:0]
	}
	i.asks = append(i.asks, asked)
}

// Spoilt fails an item whose answer cannot be read.
func (i *Item) Spoilt(target string, why *wire.SlotError) {
	a := &i.Work.Job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if !a.Closed {
		i.giveUp(wire.NewSlotError(wire.CodeBadAnswer, fmt.Sprintf("the answer of %s: %s", target, why.Message), false))
	}
}

// Facts is what is told of the item.
func (i *Item) Facts() serve.Item {
	return serve.Item{Request: i.Work.Job.Request, Ordinal: i.Ordinal, Key: i.Key, Parts: i.Parts}
}

// Fail answers with an error of the handler.
func (i *Item) Fail(e *wire.SlotError) {
	a := &i.Work.Job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if i.Claim() {
		a.Fail(i.Ordinal, e)
	}
}

// giveUp answers with an error of the library's. Called with answers.mu held.
func (i *Item) giveUp(e *wire.SlotError) {
	if i.answered {
		return
	}
	i.answered, i.dropped = true, true
	i.Work.Job.Answers.Fail(i.Ordinal, e)
}

// Claim reports whether the item may be answered now, and notes that it is. Called with answers.mu held.
func (i *Item) Claim() bool {
	if !i.Open("was answered") {
		return false
	}
	i.answered = true
	return true
}

// Open reports whether the handler may still do something with the item. Called with answers.mu held.
func (i *Item) Open(what string) bool {
	log := i.Work.Job.Log
	switch {
	case i.Work.Job.Answers.Closed:
		log.Warn("an item "+what+" after the stage had returned; that is dropped", zap.Int("ordinal", i.Ordinal))
	case i.dropped:
	case i.answered:
		log.Warn("an item "+what+" after it had been answered; the first answer stands", zap.Int("ordinal", i.Ordinal))
	default:
		return true
	}
	return false
}

// HasNext fails the item when this is the last stage. Called with answers.mu held.
func (i *Item) HasNext() bool {
	w := i.Work
	if w.Stage+1 < w.Flow.Stages {
		return true
	}
	i.giveUp(wire.NewSlotError(wire.CodeNoNextStage,
		fmt.Sprintf("stage %d is the last one of flow %s, and the item asks or goes "+
			"on in it", w.Stage, w.Flow.Server.Name), false))
	return false
}
