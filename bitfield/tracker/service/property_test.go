package service_test

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/bitfield/tracker/service"
)

// pending is the outcome of an item that has none; an item that is done has the empty one, a failed one its code.
const pending = "…"

// naive is a batch as anyone would write it: the outcome of each item.
type naive struct {
	id     uuid.UUID
	state  tracker.State
	groups [][]string
	adds   map[string]service.Added
	ends   int // how often a call was told that it completed
}

func (n *naive) items() (items int64) {
	for _, g := range n.groups {
		items += int64(len(g))
	}
	return items
}

func (n *naive) outcomes() map[string]int64 {
	out := map[string]int64{}
	for _, g := range n.groups {
		for _, outcome := range g {
			out[outcome]++
		}
	}
	return out
}

func (n *naive) missing() (missing []tracker.Range) {
	for group, items := range n.groups {
		for i, outcome := range items {
			last := len(missing) - 1
			switch {
			case outcome != pending:
			case last >= 0 && missing[last].Group == group && missing[last].Hi == i:
				missing[last].Hi++
			default:
				missing = append(missing, tracker.Range{Group: group, Lo: i, Hi: i + 1})
			}
		}
	}
	return missing
}

// take gives the pending items of a mask an outcome, and returns how many there were.
func (n *naive) take(a tracker.Ack, code string) (newly int64) {
	for i := range a.Mask.All() {
		if n.groups[a.Group][i] == pending {
			n.groups[a.Group][i] = code
			newly++
		}
	}
	return newly
}

// takeAll does what a BatchAck says.
func (n *naive) takeAll(a service.BatchAck) (newly int64) {
	for _, items := range a.Items {
		newly += n.take(items, a.Code)
	}
	for group := range n.groups {
		named := func(s tracker.Span) bool { return s.First <= group && group <= s.Last }
		if a.All || slices.ContainsFunc(a.Whole, named) {
			newly += n.take(tracker.Ack{Group: group, Mask: bitfield.Full(len(n.groups[group]))}, a.Code)
		}
	}
	return newly
}

// machine drives the service and naive batches through the same operations.
type machine struct {
	*bench
	batches []*naive
}

func (m *machine) pick(t *rapid.T) *naive {
	return m.batches[rapid.IntRange(0, len(m.batches)-1).Draw(t, "batch")]
}

func (m *machine) Open(*rapid.T) {
	if len(m.batches) < 3 {
		m.batches = append(m.batches, &naive{id: m.open(), state: tracker.StateOpen, adds: map[string]service.Added{}})
	}
}

func (m *machine) Add(t *rapid.T) {
	b := m.pick(t)
	n := rapid.OneOf(rapid.Int64Range(1, 4), rapid.SampledFrom([]int64{64, 8191, 8192, 8193, 2*8192 + 3})).Draw(t, "n")
	key := rapid.SampledFrom([]string{"", "", "a", "b"}).Draw(t, "key")
	added, err := m.add(b.id, n, key)
	before, used := b.adds[key]
	var state *tracker.StateError
	switch {
	case used && before.Items == n:
		if before.Existing = true; err != nil || added != before {
			t.Fatalf("added again: %+v, %v; want %+v", added, err, before)
		}
	case used:
		if !errors.Is(err, service.ErrConflict) {
			t.Fatalf("added something else: %v", err)
		}
	case b.state != tracker.StateOpen:
		if !errors.As(err, &state) || state.State != b.state {
			t.Fatalf("added to a batch that is %s: %v", b.state, err)
		}
	default:
		want := service.Added{FirstGroup: len(b.groups), Groups: int(n+8191) / 8192, Items: n}
		if err != nil || added != want {
			t.Fatalf("added %+v, %v; want %+v", added, err, want)
		}
		if key != "" {
			b.adds[key] = added
		}
		for ; n > 0; n -= 8192 {
			b.groups = append(b.groups, slices.Repeat([]string{pending}, int(min(n, 8192))))
		}
	}
}

// draw makes an ack of one batch that fits it, in any of the ways there are, or now and then one that does not.
func (m *machine) draw(t *rapid.T, b *naive) (a service.BatchAck, fits bool) {
	a = service.BatchAck{Batch: b.id, Code: rapid.SampledFrom([]string{"", "", "E1", "E2"}).Draw(t, "code")}
	if len(b.groups) == 0 {
		return a, true
	}
	group := rapid.IntRange(0, len(b.groups)-1)
	for range rapid.IntRange(0, 3).Draw(t, "masks") {
		g := group.Draw(t, "group")
		lo := rapid.IntRange(0, len(b.groups[g])-1).Draw(t, "lo")
		hi := rapid.OneOf(rapid.Just(len(b.groups[g])), rapid.IntRange(lo+1, len(b.groups[g]))).Draw(t, "hi")
		a.Items = append(a.Items, tracker.Ack{Group: g, Mask: bitfield.Range(lo, hi)})
	}
	switch rapid.IntRange(0, 24).Draw(t, "more") {
	case 0:
		a.All = true
	case 1, 2, 3:
		lo := group.Draw(t, "first")
		a.Whole = []tracker.Span{{First: lo, Last: rapid.IntRange(lo, len(b.groups)-1).Draw(t, "last")}}
	case 4:
		a.Whole = []tracker.Span{{First: 0, Last: len(b.groups)}}
		return a, false
	case 5:
		a.Items = append(a.Items, some(len(b.groups), 0))
		return a, false
	}
	return a, true
}

func (m *machine) Ack(t *rapid.T) {
	var acks []service.BatchAck
	var of []*naive
	fit := true
	for range rapid.IntRange(1, 4).Draw(t, "acks") {
		b := m.pick(t)
		a, fits := m.draw(t, b)
		acks, of, fit = append(acks, a), append(of, b), fit && fits
	}
	got, err := m.tryAck(acks...)
	if !fit {
		if _, named := errors.AsType[*tracker.GroupError](err); !named {
			t.Fatalf("what does not fit: %v", err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	for i, a := range acks {
		b := of[i]
		newly := b.takeAll(a)
		completed := newly > 0 && b.state == tracker.StateSealed && b.outcomes()[pending] == 0
		if completed {
			b.state = tracker.StateCompleted
			b.ends++
		}
		if want := (service.Acked{Newly: newly, Completed: completed}); got[i] != want {
			t.Fatalf("ack %d of %+v did %+v, want %+v", i, acks, got[i], want)
		}
	}
}

func (m *machine) Seal(t *rapid.T) {
	b := m.pick(t)
	if rapid.IntRange(0, 2).Draw(t, "seldom") != 0 {
		return
	}
	completed := m.seal(b.id)
	if want := b.state == tracker.StateOpen && b.outcomes()[pending] == 0; completed != want {
		t.Fatalf("the seal completed it: %v, want %v", completed, want)
	}
	switch {
	case completed:
		b.state, b.ends = tracker.StateCompleted, b.ends+1
	case b.state == tracker.StateOpen:
		b.state = tracker.StateSealed
	}
}

func (m *machine) Delete(t *rapid.T) {
	b := m.pick(t)
	if len(m.batches) == 1 || rapid.IntRange(0, 5).Draw(t, "seldom") != 0 {
		return
	}
	m.in(func(ctx context.Context, tx pgx.Tx) error { return service.Delete(ctx, tx, b.id) })
	if _, err := service.Get(m.Context(), m.pool, b.id); !errors.Is(err, tracker.ErrNotFound) {
		t.Fatalf("a deleted batch: %v", err)
	}
	m.batches = slices.DeleteFunc(m.batches, func(n *naive) bool { return n == b })
	if got := len(m.events(b.id)); got != b.ends {
		t.Fatalf("%d events of a deleted batch, want %d", got, b.ends)
	}
	m.in(func(ctx context.Context, tx pgx.Tx) error { _, err := service.Purge(ctx, tx, 1000); return err })
}

// Check compares all that can be asked of one batch, now and then: what went wrong stays wrong.
func (m *machine) Check(t *rapid.T) {
	if rapid.IntRange(0, 5).Draw(t, "look") != 0 {
		return
	}
	b := m.pick(t)
	got, out := m.get(b.id), b.outcomes()
	failed := map[string]int64{}
	for _, c := range got.Codes {
		failed[c.Code] = c.Items
	}
	done, left := out[""], out[pending]
	delete(out, "")
	delete(out, pending)
	if got.State != b.state || got.Items != b.items() || got.Pending != left || got.Done != done ||
		!maps.Equal(failed, out) {
		t.Fatalf("got %+v, want %s with %d pending, %d done, %v", got, b.state, left, done, out)
	}
	if sorted := slices.IsSortedFunc(got.Codes, func(a, b service.CodeCount) int {
		return cmp.Or(cmp.Compare(b.Items, a.Items), cmp.Compare(a.Code, b.Code))
	}); !sorted {
		t.Fatalf("codes %v", got.Codes)
	}
	limit := rapid.SampledFrom([]int{2, 7, 1000}).Draw(t, "page")
	var missing []tracker.Range
	for from := (&service.Position{}); from != nil; {
		page, next, err := service.Missing(m.Context(), m.pool, b.id, *from, limit)
		if err != nil || len(page) > limit {
			t.Fatalf("%d ranges of at most %d, %v", len(page), limit, err)
		}
		missing, from = append(missing, page...), next
	}
	if !slices.Equal(missing, b.missing()) {
		t.Fatalf("missing %v, want %v", missing, b.missing())
	}
	events := m.events(b.id)
	if len(events) != b.ends || b.ends > 1 {
		t.Fatalf("%d events; %d calls were told", len(events), b.ends)
	}
	if len(events) == 1 && (!maps.Equal(events[0].Codes, out) || events[0].Done != done || events[0].Items != b.items()) {
		t.Fatalf("the event says %+v, want %v", events[0], out)
	}
}

func TestServiceAgainstAnOracle(t *testing.T) {
	t.Parallel()
	b := setup(t)
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{bench: b}
		m.Open(t)
		t.Repeat(rapid.StateMachineActions(m))
	})
}
