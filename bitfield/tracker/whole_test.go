package tracker_test

import (
	"context"
	"errors"
	"reflect"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield/tracker"
)

func wholly(sql string, id uuid.UUID, newly *int, spans ...tracker.Span) call {
	return func(ctx context.Context, tx pgx.Tx) (bool, error) {
		acked, err := tracker.AckWholeWith(ctx, tx, sql, id, spans...)
		*newly += acked.Newly
		return acked.Completed, err
	}
}

// TestWholeGroupsRace has an ack of whole groups meet another, an ack by mask and a seal, in both orders. The same race
// with a statement that does not lock the groups counts items twice, or leaves the batch wrong.
func TestWholeGroupsRace(t *testing.T) {
	t.Parallel()
	whole := tracker.Statements["ackWhole"]
	unlocked := mutate(t, whole, "FOR NO KEY UPDATE OF g", "")
	every := tracker.Span{First: 0, Last: 2}
	for name, tc := range map[string]struct {
		sealed bool
		race   func(sql string, id uuid.UUID, newly *int) (first, second call)
		// breaks: the mutant does; a race that does not meet at the groups says nothing of it.
		breaks bool
	}{
		"itself": {true, func(sql string, id uuid.UUID, newly *int) (call, call) {
			return wholly(sql, id, newly, every), wholly(sql, id, newly, every)
		}, true},
		"a mask before it": {true, func(sql string, id uuid.UUID, newly *int) (call, call) {
			return func(ctx context.Context, tx pgx.Tx) (bool, error) {
				acked, err := tracker.AckMasks(ctx, tx, id, []tracker.Ack{some(1, 2, 3)})
				*newly += acked.Newly
				return acked.Completed, err
			}, wholly(sql, id, newly, every)
		}, true},
		"a mask behind it": {true, func(sql string, id uuid.UUID, newly *int) (call, call) {
			return wholly(sql, id, newly, every), func(ctx context.Context, tx pgx.Tx) (bool, error) {
				acked, err := tracker.AckMasks(ctx, tx, id, []tracker.Ack{some(1, 2, 3)})
				*newly += acked.Newly
				return acked.Completed, err
			}
		}, false},
		"a seal before it": {false, func(sql string, id uuid.UUID, newly *int) (call, call) {
			return sealing(id), wholly(sql, id, newly, every)
		}, false},
		"a seal behind it": {false, func(sql string, id uuid.UUID, newly *int) (call, call) {
			return wholly(sql, id, newly, every), sealing(id)
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			right := func(sql string) bool {
				id, newly := b.open(10, 20, 30), 0
				if tc.sealed {
					b.seal(id)
				}
				first, second := tc.race(sql, id, &newly)
				got := b.race(first, second, commits)
				return got.secondErr == nil && got.completions() == 1 && newly == 60 &&
					b.get(id).State == tracker.StateCompleted
			}
			if !right(whole) {
				t.Error("the real statement went wrong")
			}
			if right(unlocked) == tc.breaks {
				t.Errorf("the mutant went right: %v", !tc.breaks)
			}
		})
	}
}

func TestWholeGroupsThatAreNotThere(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open(10, 20)
	for name, tc := range map[string]struct {
		id    uuid.UUID
		span  tracker.Span
		group int
	}{
		"past the end": {id, tracker.Span{First: 1, Last: 2}, 2},
		"backwards":    {id, tracker.Span{First: 1, Last: 0}, 0},
		"negative":     {id, tracker.Span{First: -1, Last: 0}, -1},
		"huge":         {id, tracker.Span{First: 0, Last: 1 << 40}, 1 << 40},
	} {
		var newly int
		_, err := wholly(tracker.Statements["ackWhole"], tc.id, &newly, tc.span)(t.Context(), b.begin())
		var group *tracker.GroupError
		if !errors.As(err, &group) || group.Group != tc.group {
			t.Errorf("%s: %v", name, err)
		}
	}
	var newly int
	_, err := wholly(tracker.Statements["ackWhole"], uuid.New(), &newly, tracker.Span{})(t.Context(), b.begin())
	if !errors.Is(err, tracker.ErrNotFound) {
		t.Errorf("an unknown batch: %v", err)
	}
}

// TestAckTellsWhatIsNew acknowledges items of several groups, some of which were acknowledged before.
func TestAckTellsWhatIsNew(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open(5, 5, 5)
	b.seal(id)
	b.ack(id, some(0, 1, 2), whole(2, 5))
	for _, tc := range []struct {
		acks []tracker.Ack
		want tracker.AckedNew
	}{
		{
			[]tracker.Ack{some(2, 1), some(1, 4), some(0, 0, 1), some(1, 0)},
			tracker.AckedNew{Acked: tracker.Acked{Newly: 3}, New: []tracker.Ack{some(0, 0), some(1, 0, 4)}},
		},
		{[]tracker.Ack{some(0, 0)}, tracker.AckedNew{New: []tracker.Ack{}}},
		{
			[]tracker.Ack{whole(0, 5), whole(1, 5)},
			tracker.AckedNew{
				Acked: tracker.Acked{Newly: 5, Completed: true, Generation: 1},
				New:   []tracker.Ack{some(0, 3, 4), some(1, 1, 2, 3)},
			},
		},
	} {
		b.in(func(tx pgx.Tx) error {
			got, err := tracker.AckNew(t.Context(), tx, id, tc.acks)
			if !reflect.DeepEqual(got, tc.want) {
				t.Errorf("%v did %+v, want %+v", tc.acks, got, tc.want)
			}
			return err
		})
	}
	_, err := tracker.AckNew(t.Context(), b.begin(), id, []tracker.Ack{some(1, 7)})
	var group *tracker.GroupError
	if !errors.As(err, &group) || group.Group != 1 {
		t.Errorf("an index past the size: %v", err)
	}
}
