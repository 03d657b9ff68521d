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

// Stage is what one call of a flow's handler works on: the items of a chunk that have come so far. It is safe for
// concurrent use, except for Shared and the items' State, which are the handler's own; it must not be used after the
// handler has returned.
//
// State is kept with each item from stage to stage, Shared with the chunk. Both travel as JSON: unexported fields do
// not.
type Stage[In, Out, State, Shared any] struct {
	Shared Shared

	work     *flow.Work
	handlers []func(context.Context, *Stage[In, Out, State, Shared]) error
	all      []StageItem[In, Out, State, Shared]
	items    []*StageItem[In, Out, State, Shared]
	out      Out // where a result stands while it is written; guarded by job.answers.mu
}

// newStage decodes the payloads of a request. An item whose payload does not fit In is answered at once and left out.
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

// Items returns the items that have come to this stage, in the order of the request.
func (s *Stage[In, Out, State, Shared]) Items() []*StageItem[In, Out, State, Shared] { return s.items }

// Keys returns the keys of Items, in the same order: the parameter of "WHERE id = ANY($1)".
func (s *Stage[In, Out, State, Shared]) Keys() []string {
	keys := make([]string, len(s.items))
	for i, item := range s.items {
		keys[i] = item.Key
	}
	return keys
}

// Number returns which stage this is, from 0.
func (s *Stage[In, Out, State, Shared]) Number() int { return s.work.Stage }

// Meta returns what the headers of the request say that began the flow.
func (s *Stage[In, Out, State, Shared]) Meta() wire.Meta { return s.work.Job.Request.Meta }

// Param returns a parameter of the run, or "" when the run has none of that name.
func (s *Stage[In, Out, State, Shared]) Param(name string) string {
	return s.work.Job.Request.Params[name]
}

// Params returns a copy of the run's parameters.
func (s *Stage[In, Out, State, Shared]) Params() map[string]string {
	return maps.Clone(s.work.Job.Request.Params)
}

// Flush sends what has been answered so far, without waiting for it to arrive. Once the handler has returned it does
// nothing.
func (s *Stage[In, Out, State, Shared]) Flush() {
	a := &s.work.Job.Answers
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if !a.Closed {
		a.Flush()
	}
}

// staged is a Stage as its flow sees it.
type staged[In, Out, State, Shared any] Stage[In, Out, State, Shared]

// Call implements sheet.
func (s *staged[In, Out, State, Shared]) Call(ctx context.Context, stage int) error {
	return s.handlers[stage](ctx, (*Stage[In, Out, State, Shared])(s))
}

// Show implements sheet. The payloads are there in the first stage only, however the next one is come by.
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

// WriteState implements sheet.
func (s *staged[In, Out, State, Shared]) WriteState(buf *bytes.Buffer, item *flow.Item) error {
	return encodeState(buf, &s.all[item.At].State)
}

// WriteShared implements sheet.
func (s *staged[In, Out, State, Shared]) WriteShared(buf *bytes.Buffer) error {
	return encodeState(buf, &s.Shared)
}

func encodeState(buf *bytes.Buffer, state any) error {
	if _, none := state.(*None); none {
		return nil
	}
	return wire.EncodePayload(buf, state)
}

// StageItem is one item in a stage of a flow. It must be answered, to ask (with a Target) or to go on (Next): an item
// that does none of these is left out, and will be retried.
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
		a.Fail(i.Ordinal, wire.Unwritten(err))
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

// None is the type of a state that a flow does not need.
type None struct{}

// HandleFlow has svc serve an endpoint in stages, which read from top to bottom like one function. A stage may ask
// other endpoints, item by item, with a [Target]; the next stage begins when all the answers are there, on any instance
// of the service. In between no one waits: the chunk is suspended, and its state (State of each item, Shared of the
// chunk) lies in a stream.
//
// In each stage an item is answered (Reply, Fail, Retry), asks for something, goes on as it is (Next), or is left out,
// and will then be retried. An item that was answered is not seen by later stages. An item whose question came back
// as an error is answered with that error, unless the target keeps errors; so is one that was left out, with
// CodeUnanswered. When the whole chunk of a question failed, the failure speaks for its items here, too.
//
// A stage may run more than once. What it asks should follow from the items and their states alone: a stage that is
// repeated repeats its questions under their old ids. An error, or a panic, of a stage speaks for all items that are
// not answered; nothing is asked then. Timeout is how long one stage may take, and also how long a chunk may be
// suspended.
//
// It fails when the name cannot be an endpoint's, has a handler already, an option is out of range, or there is no
// stage.
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

// Revision names what the stages of a flow mean. Change it when a chunk that one version of the service has suspended
// cannot be continued by the next: such chunks are then begun again instead. A changed number of stages counts as
// another revision by itself. It has up to 64 printable ASCII characters.
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
