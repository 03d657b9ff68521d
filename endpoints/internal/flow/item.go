package flow

import (
	"fmt"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// Item is an untyped StageItem. Its fields are guarded by Answers.Mu.
type Item struct {
	At      int // index in Stage.all
	Ordinal int
	Key     string
	Parts   wire.Parts // in the first stage only
	Work    *Work

	answered bool
	// dropped says that the library answered or dropped the item: what the handler does then needs no warning.
	dropped bool
	Next    bool
	// asks are the item's questions in this stage, waits the indexes of their requests.
	asks  []*asked
	few   [2]*asked // initial storage of asks
	waits []int
	// answers are the answers to the previous stage's questions.
	answers []flowAnswer
}

type flowAnswer struct {
	target string
	slot   wire.Slot
}

// goes reports whether the item moves to the next stage.
func (i *Item) goes() bool { return !i.answered && (i.Next || len(i.asks) > 0) }

// asksOf returns the item's question of that name in this stage, or nil. Answers.Mu must be held.
func (i *Item) asksOf(name string) *asked {
	for _, asked := range i.asks {
		if asked.name == name {
			return asked
		}
	}
	return nil
}

// Answer returns a target's answer, if the previous stage asked it for the item.
func (i *Item) Answer(target string) (slot wire.Slot, asked bool) {
	for n := range i.answers {
		if i.answers[n].target == target {
			return i.answers[n].slot, true
		}
	}
	return wire.Slot{}, false
}

// Ask records a question to a target.
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
		i.Work.Job.Log.Warn("an item asked a target twice in one stage; the first question counts",
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

// Spoilt fails an item whose answer cannot be decoded.
func (i *Item) Spoilt(target string, why *wire.SlotError) {
	a := &i.Work.Job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if !a.Closed {
		i.giveUp(wire.NewSlotError(wire.CodeBadAnswer, fmt.Sprintf("the answer of %s: %s", target, why.Message), false))
	}
}

// Facts returns the item for wrappers.
func (i *Item) Facts() serve.Item {
	return serve.Item{Job: i.Work.Job, Ordinal: i.Ordinal, Key: i.Key, Parts: i.Parts}
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

// giveUp answers with an error of the library. Answers.Mu must be held.
func (i *Item) giveUp(e *wire.SlotError) {
	if i.answered {
		return
	}
	i.answered, i.dropped = true, true
	i.Work.Job.Answers.Fail(i.Ordinal, e)
}

// Claim marks the item as answered and reports whether it may be answered now. Answers.Mu must be held.
func (i *Item) Claim() bool {
	if !i.Open("was answered") {
		return false
	}
	i.answered = true
	return true
}

// Open reports whether the handler may still change the item. Answers.Mu must be held.
func (i *Item) Open(what string) bool {
	log := i.Work.Job.Log
	switch {
	case i.Work.Job.Answers.Closed:
		log.Warn("an item "+what+" after the stage had returned; that is dropped", zap.Int("ordinal", i.Ordinal))
	case i.dropped:
	case i.answered:
		log.Warn("an item "+what+" after it had been answered; the first answer counts", zap.Int("ordinal", i.Ordinal))
	default:
		return true
	}
	return false
}

// HasNext fails the item if this is the last stage. Answers.Mu must be held.
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

// Merge adds the replies to the items of the next stage. Items whose question failed or was not answered are answered
// or dropped, unless the target keeps errors.
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

// mergeRequest merges one request's reply. Answers.Mu must be held.
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
		w.Job.Log.Warn("a reply has slots that were not requested; they are dropped",
			zap.String("callee", target.Endpoint), zap.Int("slots", foreign))
	}
	w.missing(from, r, seen, failure)
}

func (i *Item) take(target suspendedRequest, slot wire.Slot) {
	if slot.Err != nil && !target.Keep {
		i.giveUp(slot.Err)
		return
	}
	i.answers = append(i.answers, flowAnswer{target.Target, slot})
}

// missing handles items without a slot in the reply: its failure applies to them, or they were left out.
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

// maxRecent bounds each of the two generations in Recent.
const maxRecent = 2048

// Recent caches the chunks of this instance, to drop repeated replies cheaply. The stream is authoritative.
type Recent struct {
	mu      sync.Mutex
	running map[wire.FlowID]bool
	young   map[wire.FlowID]bool // done; old holds the previous generation
	old     map[wire.FlowID]bool
}

// NewRecent returns an empty Recent.
func NewRecent() *Recent {
	return &Recent{running: map[wire.FlowID]bool{}, young: map[wire.FlowID]bool{}}
}

// isDone reports whether a chunk has moved on.
func (r *Recent) isDone(id wire.FlowID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.young[id] || r.old[id]
}

// begin returns false if this instance is running, or has run, the chunk's stage.
func (r *Recent) begin(id wire.FlowID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running[id] || r.young[id] || r.old[id] {
		return false
	}
	r.running[id] = true
	return true
}

func (r *Recent) end(id wire.FlowID, done bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.running, id)
	if !done {
		return
	}
	if len(r.young) >= maxRecent {
		r.old, r.young = r.young, map[wire.FlowID]bool{}
	}
	r.young[id] = true
}
