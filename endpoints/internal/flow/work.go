package flow

import (
	"bytes"
	"context"
	"fmt"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// Work runs a chunk through all stages that need no answers. It takes one slot.
type Work struct {
	Flow  *Flow
	Job   *serve.Job
	Sheet Sheet
	Stage int
	Here  []*Item  // items of the stage
	Asked []*asked // questions of the stage
	// Total is the number of items in the original request.
	Total int
	// byOrdinal indexes Here, built when a wrapper answers an item.
	byOrdinal map[int]*Item
	// failure applies to items dropped without a slot, because a request for them failed entirely.
	failure *wire.SlotError
	// leave, if set, suspends the chunk. It is called after the slot is released.
	leave func() *wire.SlotError
}

// Run implements serve.Work. Sending between stages needs no slot.
func (w *Work) Run(ctx context.Context, slots *serve.Slots, stopping <-chan struct{}) (failure *wire.SlotError,
	begun bool) {
	failure, begun = w.runStages(ctx, slots, stopping)
	if w.leave == nil {
		return failure, begun
	}
	return w.leave(), true
}

func (w *Work) runStages(
	ctx context.Context, slots *serve.Slots, stopping <-chan struct{},
) (failure *wire.SlotError, begun bool) {
	return w.Job.InSlot(ctx, slots, stopping, func() *wire.SlotError {
		if len(w.Here) > 0 || w.Stage == 0 && w.Job.Around != nil {
			w.pass(w.advance(ctx))
		}
		if w.Job.Answers.Unfinished {
			return nil // reported at the end of the flow
		}
		return w.failure
	})
}

// pass records a failure. The first one wins, as each applies to all items without a slot.
func (w *Work) pass(failure *wire.SlotError) {
	switch {
	case failure == nil:
	case w.failure == nil:
		w.failure = failure
	default:
		w.Job.Log.Warn("a chunk failed twice; reporting the first failure", zap.Error(failure))
	}
}

func (w *Work) advance(ctx context.Context) *wire.SlotError {
	for {
		if failure := w.RunStage(ctx); failure != nil {
			return failure
		}
		questions, failure := w.questions()
		if failure != nil {
			return failure
		}
		if len(questions) > 0 {
			return w.suspend(questions)
		}
		if w.moveOn(); len(w.Here) == 0 {
			return nil
		}
	}
}

// RunStage runs the current stage.
func (w *Work) RunStage(ctx context.Context) *wire.SlotError {
	ctx, cancel := context.WithTimeout(ctx, w.Job.Timeout)
	defer cancel()
	return serve.RunWrapped(ctx, w.Job, w.Stage, w)
}

func (w *Work) moveOn() {
	a := &w.Job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	w.Stage++
	going := make([]*Item, 0, len(w.Here))
	for _, item := range w.Here {
		if item.goes() {
			item.Next, item.asks, item.answers = false, nil, nil
			going = append(going, item)
		}
	}
	w.Here, w.byOrdinal, w.Asked = going, nil, nil
	w.Sheet.Show(going)
}

// Items implements serve.Wrapped.
func (w *Work) Items() serve.WorkItems { return (*stageItems)(w) }

// Handle implements serve.Wrapped.
func (w *Work) Handle(ctx context.Context) error {
	if len(w.Here) == 0 {
		return nil
	}
	return w.Job.Guard(ctx, func(ctx context.Context) error { return w.Sheet.Call(ctx, w.Stage) })
}

// Reject answers an item while the chunk is being built.
func (w *Work) Reject(item *Item, e *wire.SlotError) {
	a := &w.Job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	item.giveUp(e)
	a.Blame(item.Ordinal)
}

// askedOf returns the questions to a target in this stage. Answers.Mu must be held.
func (w *Work) askedOf(name, endpoint string, keep bool) *asked {
	for _, a := range w.Asked {
		if a.name == name && a.endpoint == endpoint && a.keep == keep {
			return a
		}
	}
	a := &asked{name: name, endpoint: endpoint, keep: keep}
	w.Asked = append(w.Asked, a)
	return a
}

// deepEnough fails an item whose question would exceed wire.MaxStack waiting endpoints. Answers.Mu must be held.
func (w *Work) deepEnough(item *Item) bool {
	stack := w.Job.Request.Stack
	if stack.Depth() < wire.MaxStack {
		return true
	}
	item.giveUp(wire.NewSlotError(wire.CodeStackTooDeep,
		fmt.Sprintf("%d endpoints wait for one another already, and flow %s would "+
			"be one more; is there a circle? %s", stack.Depth(), w.Flow.Server.Name, stack), false))
	return false
}

// Sheet is an untyped Stage.
type Sheet interface {
	// Call calls the handler of a stage.
	Call(ctx context.Context, stage int) error
	// Show sets the items that the handler sees.
	Show(items []*Item)
	// WriteState and WriteShared write the states as JSON, or nothing for None.
	WriteState(buf *bytes.Buffer, item *Item) error
	WriteShared(buf *bytes.Buffer) error
}

// stageItems is the view of a Work for wrappers.
type stageItems Work

// Unanswered implements serve.WorkItems.
func (s *stageItems) Unanswered() []serve.Item {
	items := make([]serve.Item, 0, len(s.Here))
	for _, item := range s.Here {
		if !item.answered {
			items = append(items, item.Facts())
		}
	}
	return items
}

// ClaimFor implements serve.WorkItems.
func (s *stageItems) ClaimFor(ordinal int) bool {
	if s.byOrdinal == nil {
		s.byOrdinal = make(map[int]*Item, len(s.Here))
		for _, item := range s.Here {
			s.byOrdinal[item.Ordinal] = item
		}
	}
	item := s.byOrdinal[ordinal]
	if item == nil || item.answered {
		return false
	}
	item.answered = true
	return true
}

// LeaveOut implements serve.WorkItems.
func (s *stageItems) LeaveOut() {
	a := &s.Job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	left := make([]*Item, 0, len(s.Here))
	for _, item := range s.Here {
		if !item.answered {
			left = append(left, item)
		}
	}
	if len(left) < len(s.Here) {
		s.Here = left
		s.Sheet.Show(left)
	}
}

// GoingOn implements serve.Onward.
func (s *stageItems) GoingOn() []int {
	var ordinals []int
	for _, item := range s.Here {
		if item.goes() {
			ordinals = append(ordinals, item.Ordinal)
		}
	}
	return ordinals
}
