package endpoints

import (
	"bytes"
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// flowWork takes a chunk through as many stages as need no answer from elsewhere. It takes one slot.
type flowWork struct {
	flow  *flow
	job   *job
	sheet sheet
	stage int
	here  []*flowItem // the items of the stage
	asked []*asked    // by the stage
	// total is the number of items in the request that began the flow.
	total int
	// byOrdinal finds items of the stage; made when a wrapper answers one.
	byOrdinal map[int]*flowItem
	// failure speaks for items that the flow has given up without a slot: a request for them has failed as a whole.
	failure *wire.SlotError
	// leave, if set, suspends the chunk; it is called when the slot has been given back.
	leave func() *wire.SlotError
}

// run implements work. What is sent between stages needs no slot.
func (w *flowWork) run(ctx context.Context, slots *slots, stopping <-chan struct{}) (failure *wire.SlotError,
	begun bool) {
	failure, begun = w.runStages(ctx, slots, stopping)
	if w.leave == nil {
		return failure, begun
	}
	return w.leave(), true
}

func (w *flowWork) runStages(
	ctx context.Context, slots *slots, stopping <-chan struct{},
) (failure *wire.SlotError, begun bool) {
	return w.job.inSlot(ctx, slots, stopping, func() *wire.SlotError {
		if len(w.here) > 0 || w.stage == 0 && w.job.around != nil {
			w.pass(w.advance(ctx))
		}
		if w.job.answers.unfinished {
			return nil // it is told at the end of the flow
		}
		return w.failure
	})
}

// pass notes a failure. The first one stands: each speaks for all items without a slot.
func (w *flowWork) pass(failure *wire.SlotError) {
	switch {
	case failure == nil:
	case w.failure == nil:
		w.failure = failure
	default:
		w.job.log.Warn("a chunk has failed twice over; the first failure is told", zap.Error(failure))
	}
}

// advance runs stages until the chunk is answered, suspended, or has failed.
func (w *flowWork) advance(ctx context.Context) *wire.SlotError {
	for {
		if failure := w.runStage(ctx); failure != nil {
			return failure
		}
		questions, failure := w.questions()
		if failure != nil {
			return failure
		}
		if len(questions) > 0 {
			return w.suspend(questions)
		}
		if w.moveOn(); len(w.here) == 0 {
			return nil
		}
	}
}

func (w *flowWork) runStage(ctx context.Context) *wire.SlotError {
	ctx, cancel := context.WithTimeout(ctx, w.job.timeout)
	defer cancel()
	return runWrapped(ctx, w.job, w.stage, w)
}

// moveOn goes on to the next stage with the items that ask for nothing.
func (w *flowWork) moveOn() {
	a := &w.job.answers
	a.mu.Lock()
	defer a.mu.Unlock()
	w.stage++
	going := make([]*flowItem, 0, len(w.here))
	for _, item := range w.here {
		if item.goes() {
			item.next, item.asks, item.answers = false, nil, nil
			going = append(going, item)
		}
	}
	w.here, w.byOrdinal, w.asked = going, nil, nil
	w.sheet.show(going)
}

// items implements wrapped.
func (w *flowWork) items() workItems { return (*stageItems)(w) }

// handle implements wrapped.
func (w *flowWork) handle(ctx context.Context) error {
	if len(w.here) == 0 {
		return nil
	}
	return w.job.guard(ctx, func(ctx context.Context) error { return w.sheet.call(ctx, w.stage) })
}

// reject answers an item while the chunk is being made.
func (w *flowWork) reject(item *flowItem, e *wire.SlotError) {
	a := &w.job.answers
	a.mu.Lock()
	defer a.mu.Unlock()
	item.giveUp(e)
	a.blame(item.ordinal)
}

// askedOf returns what is asked of a target in this stage. Called with answers.mu held.
func (w *flowWork) askedOf(name, endpoint string, keep bool) *asked {
	for _, a := range w.asked {
		if a.is(name, endpoint, keep) {
			return a
		}
	}
	a := &asked{name: name, endpoint: endpoint, keep: keep}
	w.asked = append(w.asked, a)
	return a
}

// deepEnough fails an item whose question would make one more endpoint wait than is allowed. Called with answers.mu
// held.
func (w *flowWork) deepEnough(item *flowItem) bool {
	stack := w.job.request.Stack
	if stack.Depth() < wire.MaxStack {
		return true
	}
	item.giveUp(wire.NewSlotError(wire.CodeStackTooDeep,
		fmt.Sprintf("%d endpoints wait for one another already, and flow %s would "+
			"be one more; is there a circle? %s", stack.Depth(), w.flow.server.name, stack), false))
	return false
}

// sheet is a Stage, whatever its types.
type sheet interface {
	// call calls the handler of a stage.
	call(ctx context.Context, stage int) error
	// show sets which items the handler sees.
	show(items []*flowItem)
	// writeState and writeShared write the states as JSON, or nothing when there is none to keep.
	writeState(buf *bytes.Buffer, item *flowItem) error
	writeShared(buf *bytes.Buffer) error
}

// stageItems is a flowWork as wrappers see it.
type stageItems flowWork

// unanswered implements workItems.
func (s *stageItems) unanswered() []workItem {
	items := make([]workItem, 0, len(s.here))
	for _, item := range s.here {
		if !item.answered {
			items = append(items, item.facts())
		}
	}
	return items
}

// claimFor implements workItems.
func (s *stageItems) claimFor(ordinal int) bool {
	if s.byOrdinal == nil {
		s.byOrdinal = make(map[int]*flowItem, len(s.here))
		for _, item := range s.here {
			s.byOrdinal[item.ordinal] = item
		}
	}
	item := s.byOrdinal[ordinal]
	if item == nil || item.answered {
		return false
	}
	item.answered = true
	return true
}

// leaveOut implements workItems.
func (s *stageItems) leaveOut() {
	a := &s.job.answers
	a.mu.Lock()
	defer a.mu.Unlock()
	left := make([]*flowItem, 0, len(s.here))
	for _, item := range s.here {
		if !item.answered {
			left = append(left, item)
		}
	}
	if len(left) < len(s.here) {
		s.here = left
		s.sheet.show(left)
	}
}

// goingOn implements onward.
func (s *stageItems) goingOn() []int {
	var ordinals []int
	for _, item := range s.here {
		if item.goes() {
			ordinals = append(ordinals, item.ordinal)
		}
	}
	return ordinals
}
