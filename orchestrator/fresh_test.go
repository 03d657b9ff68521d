package orchestrator

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/workqueue"
)

// Each event is published by one of the two ways, and by the outbox's reader whenever the other one gives it up.
func TestFreshEvents(t *testing.T) {
	t.Parallel()
	f := newFreshEvents()
	kept, refused, read := uuid.New(), uuid.New(), uuid.New()
	if f.passes(read) {
		t.Error("what nobody knows is passed over")
	}
	for _, id := range []uuid.UUID{kept, refused, read} {
		f.add(freshEvent{Event: workqueue.Event{ID: id}})
	}
	var taken []uuid.UUID
	for _, e := range f.take() {
		taken = append(taken, e.ID)
	}
	if !slices.Equal(taken, []uuid.UUID{kept, refused}) {
		t.Errorf("%v are published; want %v and %v, and not what was read from the outbox", taken, kept, refused)
	}
	f.end(kept, true)
	f.end(refused, false)
	if !f.passes(kept) || f.passes(refused) {
		t.Error("the outbox's reader is to pass over what was published, and not what was refused")
	}
	failure := errors.New("no database")
	err := f.mark(func(ids []uuid.UUID) error {
		if !slices.Equal(ids, []uuid.UUID{kept}) || !f.passes(kept) {
			t.Errorf("%v are marked; want %v, which is passed over until then", ids, kept)
		}
		return failure
	})
	if !errors.Is(err, failure) || f.passes(kept) {
		t.Errorf("what could not be marked is left to the outbox's reader: %v", err)
	}
	for range maxFresh + 1 {
		f.add(freshEvent{Event: workqueue.Event{ID: uuid.New()}})
	}
	if n := len(f.take()); n != maxFresh {
		t.Errorf("%d are kept; want %d", n, maxFresh)
	}
}
