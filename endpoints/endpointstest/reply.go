package endpointstest

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// Reply is a complete reply, put together from its messages.
type Reply struct {
	Request *Request
	// Slots is by ordinal.
	Slots []wire.Slot
	// Failure speaks for the items without a slot; nil when there is none.
	Failure *wire.SlotError
	// Messages is how many there were.
	Messages int
	// Service is who answered: "name@version instance".
	Service string
	// Header is that of the final message.
	Header nats.Header
}

// Slot returns the slot of an item, and false when it has none.
func (r *Reply) Slot(key string) (wire.Slot, bool) {
	for _, slot := range r.Slots {
		if have, ok := r.Request.Keys[slot.Ordinal]; ok && have == key {
			return slot, true
		}
	}
	return wire.Slot{}, false
}

// Err returns the error that an item was answered with: that of its slot, or the failure when it has none. It is nil
// for a result, and for an item that was left out.
func (r *Reply) Err(key string) *wire.SlotError {
	slot, ok := r.Slot(key)
	if !ok {
		return r.Failure
	}
	return slot.Err
}

// LeftOut returns the keys of the items that have no slot, by ordinal. A failure speaks for them, or else they will be
// tried again.
func (r *Reply) LeftOut() []string {
	answered := map[int]bool{}
	for _, slot := range r.Slots {
		answered[slot.Ordinal] = true
	}
	var keys []string
	for _, ordinal := range slices.Sorted(maps.Keys(r.Request.Keys)) {
		if !answered[ordinal] {
			keys = append(keys, r.Request.Keys[ordinal])
		}
	}
	return keys
}

// Result returns the result of an item. With endpoints.Binary as T it takes binary results. It ends the test when the
// item has none, or one that does not fit T.
func Result[T any](t testing.TB, r *Reply, key string) T {
	t.Helper()
	var result T
	slot, ok := r.Slot(key)
	switch {
	case !ok && r.Failure != nil:
		t.Fatalf("item %s has no result: the chunk failed with %v", key, r.Failure)
	case !ok:
		t.Fatalf("item %s has no result: it was left out; these were: %q", key, r.LeftOut())
	case slot.Err != nil:
		t.Fatalf("item %s has no result but an error: %v (retry: %t)", key, slot.Err, slot.Err.Retry)
	}
	if binary, ok := any(&result).(*wire.Binary); ok {
		*binary = wire.Binary{ContentType: slot.ContentType, Data: slot.Data}
		return result
	}
	if slot.ContentType != "" {
		t.Fatalf("item %s has a binary result, of type %s: read it as endpoints.Binary", key, slot.ContentType)
	}
	if err := json.Unmarshal(slot.Data, &result); err != nil {
		t.Fatalf("the result of item %s does not fit %T: %v: %.200s", key, &result, err, slot.Data)
	}
	return result
}
