package endpointstest

import (
	"context"
	"encoding/json"
	"slices"
	"sync"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// Asked is an item that a stub was asked for.
type Asked struct {
	endpoints.ItemInfo
	Payload json.RawMessage
}

// Into reads the payload.
func (a Asked) Into(value any) error { return json.Unmarshal(a.Payload, value) }

// Answer returns a slot with a result: any value that can be written as JSON, or an endpoints.Binary.
func (a Asked) Answer(result any) wire.Slot {
	if binary, ok := result.(wire.Binary); ok {
		return wire.Slot{Ordinal: a.Ordinal, Data: binary.Data, ContentType: binary.ContentType}
	}
	encoded, err := json.Marshal(result)
	if err != nil {
		return a.Fail(wire.CodeBadResult, err.Error())
	}
	return wire.Slot{Ordinal: a.Ordinal, Data: encoded}
}

// Fail returns a slot with an error that trying again would not help.
func (a Asked) Fail(code, message string) wire.Slot {
	return wire.Slot{Ordinal: a.Ordinal, Err: &wire.SlotError{Code: code, Message: message}}
}

// Retry returns a slot with an error that may pass.
func (a Asked) Retry(code, message string) wire.Slot {
	return wire.Slot{Ordinal: a.Ordinal, Err: &wire.SlotError{Code: code, Message: message, Retry: true}}
}

// Stub is an endpoint that a test answers for.
type Stub struct {
	*Instance

	mu       sync.Mutex
	requests [][]Asked
}

// Stub serves an endpoint with what answer returns for each request: slots, in any order, and an error for the items
// without one. An item with neither is left out.
func (k *Kit) Stub(endpoint string, answer func([]Asked) ([]wire.Slot, error)) *Stub {
	k.t.Helper()
	s := &Stub{}
	s.Instance = k.Serve(func(svc *endpoints.Service) error {
		return endpoints.HandleList(svc, endpoint,
			func(_ context.Context, chunk *endpoints.Chunk[json.RawMessage, any]) error {
				return s.answer(chunk, answer)
			})
	}, func(c *endpoints.Config) { c.Name = "stub-of-" + endpoint })
	return s
}

// Requests returns what the stub was asked, request by request, in the order in which they came.
func (s *Stub) Requests() [][]Asked {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests)
}

func (s *Stub) answer(
	chunk *endpoints.Chunk[json.RawMessage, any], answer func([]Asked) ([]wire.Slot, error),
) error {
	byOrdinal := map[int]*endpoints.Item[json.RawMessage, any]{}
	asked := make([]Asked, 0, len(chunk.Items()))
	for _, item := range chunk.Items() {
		byOrdinal[item.Ordinal] = item
		asked = append(asked, Asked{item.Info(), item.In})
	}
	s.mu.Lock()
	s.requests = append(s.requests, asked)
	s.mu.Unlock()
	slots, err := answer(slices.Clone(asked))
	for _, slot := range slots {
		item := byOrdinal[slot.Ordinal]
		switch {
		case item == nil:
			return endpoints.Fail("stub", "the stub answers ordinal %d, which it was not asked for", slot.Ordinal)
		case slot.Err != nil && slot.Err.Retry:
			item.Retry(slot.Err.Code, "%s", slot.Err.Message)
		case slot.Err != nil:
			item.Fail(slot.Err.Code, "%s", slot.Err.Message)
		case slot.ContentType != "":
			item.Reply(wire.Binary{ContentType: slot.ContentType, Data: slot.Data})
		default:
			item.Reply(json.RawMessage(slot.Data))
		}
	}
	return err
}
