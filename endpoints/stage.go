package endpoints

import (
	"bytes"
	"context"
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
