package endpoints

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"

	"github.com/tranchehq/tranche/endpoints/internal/flow"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// Stage is the items of one call of a flow's handler: those of a chunk that reached this stage. It is safe for
// concurrent use until the handler returns, except for Shared and the items' State, which belong to the handler.
//
// State is kept per item from stage to stage, Shared per chunk. Both are stored as JSON, so unexported fields are
// lost.
type Stage[In, Out, State, Shared any] struct {
	Shared Shared

	work     *flow.Work
	handlers []func(context.Context, *Stage[In, Out, State, Shared]) error
	all      []StageItem[In, Out, State, Shared]
	items    []*StageItem[In, Out, State, Shared]
	out      Out // buffer for the result being encoded; guarded by job.Answers.Mu
}

// newStage decodes payloads. An item whose payload does not fit In is answered with an error and left out.
func newStage[In, Out, State, Shared any](
	w *flow.Work, handlers []func(context.Context, *Stage[In, Out, State, Shared]) error,
) *staged[In, Out, State, Shared] {
	raw := w.Job.Request.Items
	s := &Stage[In, Out, State, Shared]{work: w, handlers: handlers,
		all: make([]StageItem[In, Out, State, Shared], len(raw))}
	w.Here = make([]*flow.Item, 0, len(raw))
	for n := range raw {
		item := s.add(n, raw[n].Ordinal, raw[n].Key)
		item.core.Parts = raw[n].Parts
		if err := wire.DecodePayload(raw[n].Payload, &item.In); err != nil {
			w.Reject(&item.core, wire.PayloadError(err, reflect.TypeFor[In]()))
			continue
		}
		w.Here = append(w.Here, &item.core)
	}
	all := (*staged[In, Out, State, Shared])(s)
	all.Show(w.Here)
	return all
}

// resumeStage decodes the states of a suspended chunk.
func resumeStage[In, Out, State, Shared any](
	w *flow.Work, handlers []func(context.Context, *Stage[In, Out, State, Shared]) error, from *flow.Suspended,
) (*staged[In, Out, State, Shared], error) {
	s := &Stage[In, Out, State, Shared]{work: w, handlers: handlers,
		all: make([]StageItem[In, Out, State, Shared], len(from.Items))}
	if len(from.Shared) > 0 {
		if err := wire.DecodePayload(from.Shared, &s.Shared); err != nil {
			return nil, fmt.Errorf("the chunk's state does not fit %v: %w", reflect.TypeFor[Shared](), err)
		}
	}
	w.Here = make([]*flow.Item, 0, len(from.Items))
	for n := range from.Items {
		item := s.add(n, from.Items[n].Ordinal, from.Items[n].Key)
		w.Here = append(w.Here, &item.core)
		if len(from.Items[n].State) == 0 {
			continue
		}
		if err := wire.DecodePayload(from.Items[n].State, &item.State); err != nil {
			return nil, fmt.Errorf("the state of an item does not fit %v: %w", reflect.TypeFor[State](), err)
		}
	}
	return (*staged[In, Out, State, Shared])(s), nil
}

func (s *Stage[In, Out, State, Shared]) add(n, ordinal int, key string) *StageItem[In, Out, State, Shared] {
	item := &s.all[n]
	item.Ordinal, item.Key, item.stage = ordinal, key, s
	item.core = flow.Item{At: n, Ordinal: ordinal, Key: key, Work: s.work}
	return item
}

// Items returns the items in this stage, in request order.
func (s *Stage[In, Out, State, Shared]) Items() []*StageItem[In, Out, State, Shared] { return s.items }

// Keys returns the keys of Items in the same order, for "WHERE id = ANY($1)".
func (s *Stage[In, Out, State, Shared]) Keys() []string {
	keys := make([]string, len(s.items))
	for i, item := range s.items {
		keys[i] = item.Key
	}
	return keys
}

// Number returns the number of this stage, from 0.
func (s *Stage[In, Out, State, Shared]) Number() int { return s.work.Stage }

// Meta returns the metadata of the request that started the flow.
func (s *Stage[In, Out, State, Shared]) Meta() wire.Meta { return s.work.Job.Request.Meta }

// Param returns a parameter of the run, or "" if it is not set.
func (s *Stage[In, Out, State, Shared]) Param(name string) string {
	return s.work.Job.Request.Params[name]
}

// Params returns a copy of the run's parameters.
func (s *Stage[In, Out, State, Shared]) Params() map[string]string {
	return maps.Clone(s.work.Job.Request.Params)
}

// Flush sends the answers so far without waiting for delivery. It does nothing once the handler has returned.
func (s *Stage[In, Out, State, Shared]) Flush() {
	a := &s.work.Job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if !a.Closed {
		a.Flush()
	}
}

// staged is the view of a Stage for its flow.
type staged[In, Out, State, Shared any] Stage[In, Out, State, Shared]

// Call implements flow.Sheet.
func (s *staged[In, Out, State, Shared]) Call(ctx context.Context, stage int) error {
	return s.handlers[stage](ctx, (*Stage[In, Out, State, Shared])(s))
}

// Show implements flow.Sheet. Payloads exist in the first stage only, even if the next one runs in the same process.
func (s *staged[In, Out, State, Shared]) Show(items []*flow.Item) {
	s.items = make([]*StageItem[In, Out, State, Shared], len(items))
	var none In
	for n, item := range items {
		s.items[n] = &s.all[item.At]
		if s.work.Stage > 0 {
			s.items[n].In, item.Parts = none, nil
		}
	}
}

// WriteState implements flow.Sheet.
func (s *staged[In, Out, State, Shared]) WriteState(buf *bytes.Buffer, item *flow.Item) error {
	return encodeState(buf, &s.all[item.At].State)
}

// WriteShared implements flow.Sheet.
func (s *staged[In, Out, State, Shared]) WriteShared(buf *bytes.Buffer) error {
	return encodeState(buf, &s.Shared)
}

func encodeState(buf *bytes.Buffer, state any) error {
	if _, none := state.(*None); none {
		return nil
	}
	return wire.EncodePayload(buf, state)
}

// StageItem is an item in a stage of a flow. The handler must answer it, ask a Target, or call Next; otherwise the
// item is left out and retried.
type StageItem[In, Out, State, Shared any] struct {
	Ordinal int    // position in the run, from 0
	Key     string // the caller's ID
	In      In     // payload, in the first stage only
	State   State  // kept for the next stages

	stage *Stage[In, Out, State, Shared]
	core  flow.Item
}

// Flowing is a StageItem of any flow, for use with a Target.
type Flowing interface{ flowing() *flow.Item }

func (i *StageItem[In, Out, State, Shared]) flowing() *flow.Item { return &i.core }

// Reply answers the item with a result and ends its flow. A result that cannot be written as JSON or is too large
// (see Item.Reply) becomes an error slot. Only the first answer counts; questions that the item asked in this stage
// are dropped.
func (i *StageItem[In, Out, State, Shared]) Reply(result Out) {
	a := &i.core.Work.Job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if !i.core.Claim() {
		return
	}
	i.stage.out = result // encode from here: keeps result off the heap
	if err := a.Result(i.Ordinal, &i.stage.out); err != nil {
		a.Fail(i.Ordinal, wire.Unwritten(err))
	}
}

// Fail answers the item with a permanent error. See the function Fail.
func (i *StageItem[In, Out, State, Shared]) Fail(code, format string, args ...any) {
	i.core.Fail(wire.NewSlotError(code, fmt.Sprintf(format, args...), false))
}

// Retry answers the item with a retryable error. See the function Retry.
func (i *StageItem[In, Out, State, Shared]) Retry(code, format string, args ...any) {
	i.core.Fail(wire.NewSlotError(code, fmt.Sprintf(format, args...), true))
}

// Next moves the item to the next stage without a question. An item that asks needs no Next.
func (i *StageItem[In, Out, State, Shared]) Next() {
	a := &i.core.Work.Job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if i.core.Open("continued") && i.core.HasNext() {
		i.core.Next = true
	}
}

// Info identifies the item.
func (i *StageItem[In, Out, State, Shared]) Info() ItemInfo { return infoOf(i.core.Facts()) }

// None is the State or Shared type of a flow without one.
type None struct{}

// HandleFlow serves an endpoint in stages, which read like one function. A stage may query other endpoints for each
// item with a [Target]; the next stage starts, on any instance of the service, when all answers have arrived.
// Meanwhile nothing blocks: the chunk's state (State per item, Shared) is stored in a stream.
//
// In each stage an item is answered (Reply, Fail, Retry), asks, moves on (Next), or is left out and retried. Later
// stages do not see answered items. An item whose question failed is answered with that error, unless the target
// keeps errors; a question left out counts as CodeUnanswered. If a question's whole chunk failed, the failure applies
// to all its items.
//
// A stage may run more than once. Its questions must depend only on the items and their states, since a repeated
// stage sends them under their old IDs. If a stage returns an error or panics, that applies to all unanswered items,
// and no questions are sent. Timeout bounds one stage, and also how long a chunk may be suspended.
//
// It returns an error if the name is invalid or already has a handler, an option is invalid, or there is no stage.
func HandleFlow[In, Out, State, Shared any](
	svc *Service, endpoint string, stages []func(context.Context, *Stage[In, Out, State, Shared]) error, opts ...Option,
) error {
	o, err := newOptions(DefaultListConcurrency, opts)
	if err != nil {
		return fmt.Errorf("endpoint %s: %w", endpoint, err)
	}
	if err := checkStages(stages); err != nil {
		return fmt.Errorf("endpoint %s: %w", endpoint, err)
	}
	e := endpointOf(endpoint, o, contractOf[In, Out](), nil)
	e.flow = flow.New(e.Server, len(stages),
		func(w *flow.Work) flow.Sheet { return newStage(w, stages) },
		func(w *flow.Work, s *flow.Suspended) (flow.Sheet, error) { return resumeStage(w, stages, s) })
	return svc.register(e, o.wrap)
}

func checkStages[S any](stages []func(context.Context, S) error) error {
	switch {
	case len(stages) == 0:
		return errors.New("a flow needs a stage")
	case len(stages) > wire.MaxStages:
		return fmt.Errorf("the flow has %d stages; %d are allowed", len(stages), wire.MaxStages)
	}
	for n, stage := range stages {
		if stage == nil {
			return fmt.Errorf("stage %d is nil", n)
		}
	}
	return nil
}

// Revision identifies the meaning of a flow's stages, in up to 64 printable ASCII characters. Change it when the next
// version of the service cannot continue chunks suspended by this one; they then restart. Changing the number of
// stages has the same effect.
func Revision(name string) Option { return func(o *options) { o.Revision = name } }

const maxRevision = 64

func validRevision(name string) bool {
	for i := range len(name) {
		if name[i] <= 0x20 || name[i] >= 0x7f {
			return false
		}
	}
	return len(name) <= maxRevision
}
