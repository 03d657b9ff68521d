package tracker_test

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
)

// none is the outcome of an item that is pending; an item that is done has the empty one, a failed one its code.
const none = "…"

// naive is a batch as anyone would write it: the outcome of each item.
type naive struct {
	id         uuid.UUID
	run        bool // it is like a run's, and no tracker
	state      tracker.State
	generation int
	groups     [][]string
	adds       map[string]tracker.Added
}

func (n *naive) outcomes() map[string]int64 {
	out := map[string]int64{}
	for _, outcome := range slices.Concat(n.groups...) {
		out[outcome]++
	}
	return out
}

func (n *naive) missing() (missing []tracker.Range) {
	for group, items := range n.groups {
		for i, outcome := range items {
			last := len(missing) - 1
			switch {
			case outcome != none:
			case last >= 0 && missing[last].Group == group && missing[last].Hi == i:
				missing[last].Hi++
			default:
				missing = append(missing, tracker.Range{Group: group, Lo: i, Hi: i + 1})
			}
		}
	}
	return missing
}

// set gives the items of a mask that have an outcome another one, and returns how many there were.
func (n *naive) set(a tracker.Ack, from func(string) bool, to string) (changed int) {
	for i := range a.Mask.All() {
		if from(n.groups[a.Group][i]) {
			n.groups[a.Group][i] = to
			changed++
		}
	}
	return changed
}

// take does what an ack says, and returns what is to be told of it.
func (n *naive) take(a tracker.ItemsAck) (want tracker.Acked) {
	pending := func(outcome string) bool { return outcome == none }
	for _, items := range a.Items {
		want.Newly += n.set(items, pending, a.Code)
	}
	for group := range n.groups {
		named := func(s tracker.Span) bool { return s.First <= group && group <= s.Last }
		if a.All || slices.ContainsFunc(a.Whole, named) {
			want.Newly += n.set(first(group, len(n.groups[group])), pending, a.Code)
		}
	}
	if want.Newly > 0 && n.state == tracker.StateSealed && n.outcomes()[none] == 0 {
		n.state, want.Completed = tracker.StateCompleted, true
	}
	return want
}

// machine drives real and naive batches through the same operations.
type machine struct {
	*bench
	batches []*naive
}

func (m *machine) pick(t *rapid.T) *naive {
	return m.batches[rapid.IntRange(0, len(m.batches)-1).Draw(t, "batch")]
}

func seldom(t *rapid.T) bool { return rapid.IntRange(0, 5).Draw(t, "seldom") == 0 }

// kept commits also what was refused, as a careless caller of a run's batch might: it must have left nothing.
func (m *machine) kept(t *rapid.T, f func(ctx context.Context, tx pgx.Tx) error) error {
	tx := m.begin()
	result := f(m.Context(), tx)
	if err := tx.Commit(m.Context()); err != nil {
		t.Fatalf("commit after %v: %v", result, err)
	}
	return result
}

// wantState checks that err is a *StateError exactly when the batch is in none of the states.
func (n *naive) wantState(t *rapid.T, op string, err error, allowed ...tracker.State) (done bool) {
	state, ok := errors.AsType[*tracker.StateError](err)
	switch fits := slices.Contains(allowed, n.state); {
	case fits && err == nil:
		return true
	case !fits && ok && state.State == n.state && state.Batch == n.id:
		return false
	}
	t.Fatalf("%s in state %s: %v", op, n.state, err)
	return false
}

func (m *machine) Open(t *rapid.T) {
	if len(m.batches) == 4 {
		return
	}
	n := &naive{run: rapid.Bool().Draw(t, "run"), state: tracker.StateOpen, generation: 1,
		adds: map[string]tracker.Added{}}
	if n.run {
		n.id = m.run()
	} else {
		n.id = m.open()
	}
	m.batches = append(m.batches, n)
}

func (m *machine) AddGroups(t *rapid.T) {
	n := m.pick(t)
	if !n.run {
		return
	}
	size := rapid.OneOf(rapid.IntRange(1, 3), rapid.SampledFrom([]int{64, 65, 8191, 8192}))
	sizes := rapid.SliceOfN(size, 1, 3).Draw(t, "sizes")
	err := m.kept(t, func(ctx context.Context, tx pgx.Tx) error {
		first, err := tracker.AddGroups(ctx, tx, n.id, sizes)
		if err == nil && first != len(n.groups) {
			t.Fatalf("the first is %d, want %d", first, len(n.groups))
		}
		return err
	})
	if n.wantState(t, "add", err, tracker.StateOpen) {
		for _, size := range sizes {
			n.groups = append(n.groups, slices.Repeat([]string{none}, size))
		}
	}
}

func (m *machine) Add(t *rapid.T) {
	b := m.pick(t)
	if b.run {
		return
	}
	n := rapid.OneOf(rapid.Int64Range(1, 4), rapid.SampledFrom([]int64{64, 8191, 8192, 8193, 2*8192 + 3})).Draw(t, "n")
	key := rapid.SampledFrom([]string{"", "", "a", "b"}).Draw(t, "key")
	added, err := m.add(b.id, n, key)
	if before, used := b.adds[key]; used {
		before.Existing = true
		conflict, _ := errors.AsType[*tracker.ConflictError](err)
		if same := before.Items == n; same && (err != nil || added != before) || !same && conflict == nil {
			t.Fatalf("added %d again: %+v, %v; before it was %+v", n, added, err, before)
		}
		return
	}
	if !b.wantState(t, "add", err, tracker.StateOpen) {
		return
	}
	if want := (tracker.Added{FirstGroup: len(b.groups), Groups: int(n+8191) / 8192, Items: n}); added != want {
		t.Fatalf("added %+v; want %+v", added, want)
	}
	if key != "" {
		b.adds[key] = added
	}
	for ; n > 0; n -= 8192 {
		b.groups = append(b.groups, slices.Repeat([]string{none}, int(min(n, 8192))))
	}
}

// masks draws acks of groups that there are, or now and then of one that does not fit.
func (n *naive) masks(t *rapid.T) (acks []tracker.Ack, fit bool) {
	for range rapid.IntRange(0, 3).Draw(t, "masks") {
		if len(n.groups) == 0 || rapid.IntRange(0, 30).Draw(t, "stray") == 30 {
			return append(acks, some(len(n.groups), 0)), false
		}
		g := rapid.IntRange(0, len(n.groups)-1).Draw(t, "group")
		size := len(n.groups[g])
		lo := rapid.OneOf(rapid.Just(0), rapid.IntRange(0, size-1)).Draw(t, "lo")
		hi := rapid.OneOf(rapid.Just(size), rapid.IntRange(lo+1, size)).Draw(t, "hi")
		if hi < bitfield.Size && hi == size && rapid.IntRange(0, 30).Draw(t, "past") == 30 {
			return append(acks, tracker.Ack{Group: g, Mask: bitfield.Range(lo, hi+1)}), false
		}
		acks = append(acks, tracker.Ack{Group: g, Mask: bitfield.Range(lo, hi)})
	}
	return acks, true
}

// draw makes an ack of one tracker, in any of the ways there are.
func (n *naive) draw(t *rapid.T) (a tracker.ItemsAck, fit bool) {
	a = tracker.ItemsAck{Batch: n.id, Code: rapid.SampledFrom([]string{"", "", "E1", "E2"}).Draw(t, "code")}
	a.Items, fit = n.masks(t)
	switch more := rapid.IntRange(0, 24).Draw(t, "more"); {
	case more == 0:
		a.All = true
	case more < 4 && len(n.groups) > 0:
		lo := rapid.IntRange(0, len(n.groups)-1).Draw(t, "first")
		a.Whole = []tracker.Span{{First: lo, Last: rapid.IntRange(lo, len(n.groups)-1).Draw(t, "last")}}
	case more == 4:
		a.Whole, fit = []tracker.Span{{First: 0, Last: len(n.groups)}}, false
	}
	return a, fit
}

func check(t *rapid.T, of []*naive, acks []tracker.ItemsAck, got []tracker.Acked, err error, fit bool) {
	if _, misfit := errors.AsType[*tracker.GroupError](err); misfit == fit || (err == nil) != fit {
		t.Fatalf("the masks fit: %v, and the error is %v", fit, err)
	}
	for i, n := range of {
		if !fit {
			return
		}
		if want := n.take(acks[i]); got[i] != want {
			t.Fatalf("ack %d of %+v did %+v, want %+v", i, acks, got[i], want)
		}
	}
}

func (m *machine) Ack(t *rapid.T) {
	var acks []tracker.ItemsAck
	var of []*naive
	fit := true
	for range rapid.IntRange(1, 4).Draw(t, "acks") {
		if n := m.pick(t); !n.run {
			a, fits := n.draw(t)
			acks, of, fit = append(acks, a), append(of, n), fit && fits
		}
	}
	got, err := m.tryAck(acks...)
	check(t, of, acks, got, err, fit)
}

// AckRuns acknowledges items of several batches in one statement.
func (m *machine) AckRuns(t *rapid.T) {
	var acks []tracker.ItemsAck
	var of []*naive
	fit := true
	for _, n := range m.batches {
		if n.run {
			masks, fits := n.masks(t)
			acks, of, fit = append(acks, items(n.id, masks...)), append(of, n), fit && fits
		}
	}
	got, batch := make([]tracker.Acked, len(acks)), &pgx.Batch{}
	asked := make([]tracker.BatchAcks, len(acks))
	for i, a := range acks {
		asked[i] = tracker.BatchAcks{Batch: a.Batch, Items: a.Items, Into: &got[i]}
	}
	if err := tracker.QueueAcks(batch, asked); err != nil {
		t.Fatal(err)
	}
	err := m.kept(t, func(ctx context.Context, tx pgx.Tx) error { return tx.SendBatch(ctx, batch).Close() })
	check(t, of, acks, got, err, fit)
}

func (m *machine) Seal(t *rapid.T) {
	n := m.pick(t)
	if rapid.Bool().Draw(t, "later") {
		return
	}
	seal := tracker.SealTracker
	if n.run {
		seal = tracker.Seal
	}
	completed, err := try(m.bench, func(ctx context.Context, tx pgx.Tx) (bool, error) { return seal(ctx, tx, n.id) })
	if !n.wantState(t, "seal", err, tracker.StateOpen, tracker.StateSealed, tracker.StateCompleted) {
		return
	}
	if want := n.state == tracker.StateOpen && n.outcomes()[none] == 0; completed != want {
		t.Fatalf("the seal completed it: %v, want %v", completed, want)
	}
	if n.state == tracker.StateOpen {
		n.state = map[bool]tracker.State{true: tracker.StateCompleted, false: tracker.StateSealed}[completed]
	}
}

func (m *machine) Rearm(t *rapid.T) {
	n := m.pick(t)
	masks, fit := n.masks(t)
	if !n.run || len(masks) == 0 {
		return
	}
	var generation int
	err := m.kept(t, func(ctx context.Context, tx pgx.Tx) (err error) {
		generation, err = tracker.Rearm(ctx, tx, n.id, masks)
		return err
	})
	if n.state == tracker.StateCancelled {
		n.wantState(t, "rearm", err)
		return
	}
	if _, misfit := errors.AsType[*tracker.GroupError](err); misfit == fit || (err == nil) != fit {
		t.Fatalf("the masks fit: %v, and the error is %v", fit, err)
	}
	if !fit {
		return
	}
	if n.generation++; generation != n.generation {
		t.Fatalf("generation %d, want %d", generation, n.generation)
	}
	for _, a := range masks {
		n.set(a, func(string) bool { return true }, none)
	}
	if n.state == tracker.StateCompleted {
		n.state = tracker.StateSealed
	}
}

func (m *machine) Cancel(t *rapid.T) {
	n := m.pick(t)
	if !n.run || !seldom(t) { // a cancelled batch ends most of the story
		return
	}
	err := m.kept(t, func(ctx context.Context, tx pgx.Tx) error { return tracker.Cancel(ctx, tx, n.id) })
	if n.wantState(t, "cancel", err, tracker.StateOpen, tracker.StateSealed, tracker.StateCancelled) {
		n.state = tracker.StateCancelled
	}
}

func (m *machine) Reopen(t *rapid.T) {
	n := m.pick(t)
	if !n.run || n.state != tracker.StateCancelled {
		return
	}
	err := m.kept(t, func(ctx context.Context, tx pgx.Tx) error { return tracker.Reopen(ctx, tx, n.id) })
	if n.outcomes()[none] == 0 {
		n.wantState(t, "reopen", err)
	} else if n.wantState(t, "reopen", err, tracker.StateCancelled) {
		n.state, n.generation = tracker.StateSealed, n.generation+1
	}
}

func (m *machine) Delete(t *rapid.T) {
	n := m.pick(t)
	if n.run || len(m.batches) == 1 || !seldom(t) {
		return
	}
	if err := m.tryDelete(n.id); err != nil {
		t.Fatal(err)
	}
	if _, err := tracker.Get(m.Context(), m.pool, n.id); !errors.Is(err, tracker.ErrNotFound) {
		t.Fatalf("a deleted tracker: %v", err)
	}
	m.batches = slices.DeleteFunc(m.batches, func(other *naive) bool { return other == n })
	m.purge(1000)
}

// Check compares all that can be asked of one batch, now and then: what went wrong stays wrong.
func (m *machine) Check(t *rapid.T) {
	if !seldom(t) {
		return
	}
	n := m.pick(t)
	open, sum := 0, int64(0)
	for _, g := range n.groups {
		if sum += int64(len(g)); slices.Contains(g, none) {
			open++
		}
	}
	want := row{State: n.state, Generation: n.generation, Groups: len(n.groups), OpenGroups: open, Items: sum,
		Completed: n.state == tracker.StateCompleted}
	if got := m.row(n.id); got != want {
		t.Fatalf("got %+v, want %+v", got, want)
	}
	if missing := m.pending(n.id); !slices.Equal(missing, n.missing()) {
		t.Fatalf("missing %v, want %v", missing, n.missing())
	}
	if !n.run {
		m.checkTracker(t, n)
	}
}

func (m *machine) checkTracker(t *rapid.T, n *naive) {
	got, out := m.get(n.id), n.outcomes()
	codes := map[string]int64{}
	for _, c := range got.Codes {
		codes[c.Code] = c.Items
	}
	done, left := out[""], out[none]
	delete(out, "")
	delete(out, none)
	if got.State != n.state || got.Pending != left || got.Done != done || !maps.Equal(codes, out) {
		t.Fatalf("got %+v, want %s with %d pending, %d done, %v", got, n.state, left, done, out)
	}
	if !slices.IsSortedFunc(got.Codes, func(a, b tracker.CodeCount) int {
		return cmp.Or(cmp.Compare(b.Items, a.Items), cmp.Compare(a.Code, b.Code))
	}) {
		t.Fatalf("codes %v", got.Codes)
	}
	limit := rapid.SampledFrom([]int{2, 7, 1000}).Draw(t, "page")
	var missing []tracker.Range
	for from := (&tracker.Position{}); from != nil; {
		page, next, err := tracker.Missing(m.Context(), m.pool, n.id, *from, limit)
		if err != nil || len(page) > limit {
			t.Fatalf("%d ranges of at most %d, %v", len(page), limit, err)
		}
		missing, from = append(missing, page...), next
	}
	if !slices.Equal(missing, n.missing()) {
		t.Fatalf("missing in pages %v, want %v", missing, n.missing())
	}
	events := m.events(n.id)
	if len(events) != map[bool]int{true: 1}[n.state == tracker.StateCompleted] ||
		len(events) == 1 && (!maps.Equal(events[0].Codes, out) || events[0].Done != done || events[0].Items != got.Items) {
		t.Fatalf("it is %s, and the events say %+v; want %v", n.state, events, out)
	}
}

func TestTrackerAgainstAnOracle(t *testing.T) {
	t.Parallel()
	b := setup(t)
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{bench: b}
		m.Open(t)
		t.Repeat(rapid.StateMachineActions(m))
	})
}
