package tracker_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"pgregory.net/rapid"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/tracker"
)

// oracle is a tracker as anyone would write it: a map of bools for each group.
type oracle struct {
	state      tracker.State
	generation int
	sizes      []int
	pending    []map[int]bool
}

func (o *oracle) open() int {
	n := 0
	for _, p := range o.pending {
		if len(p) > 0 {
			n++
		}
	}
	return n
}

func (o *oracle) missing() []tracker.Range {
	var out []tracker.Range
	for group, pending := range o.pending {
		for i := range o.sizes[group] {
			last := len(out) - 1
			switch {
			case !pending[i]:
			case last >= 0 && out[last].Group == group && out[last].Hi == i:
				out[last].Hi++
			default:
				out = append(out, tracker.Range{Group: group, Lo: i, Hi: i + 1})
			}
		}
	}
	return out
}

// machine drives the tracker and the oracle through the same operations, each in a transaction of its own.
type machine struct {
	*bench
	id          uuid.UUID
	oracle      oracle
	completions map[int]int // by generation
}

// do runs f and commits in any case, so that a refused operation shows what it left.
func (m *machine) do(t *rapid.T, f func(tx pgx.Tx) error) error {
	tx, err := m.pool.Begin(m.Context())
	if err != nil {
		t.Fatal(err)
	}
	result := f(tx)
	if err := tx.Commit(m.Context()); err != nil {
		t.Fatalf("commit after %v: %v", result, err)
	}
	return result
}

// wantState checks that err is a *StateError exactly when the state does not allow the operation.
func (m *machine) wantState(t *rapid.T, op string, err error, allowed ...tracker.State) (done bool) {
	var state *tracker.StateError
	switch fits := slices.Contains(allowed, m.oracle.state); {
	case fits && err == nil:
		return true
	case !fits && errors.As(err, &state) && state.State == m.oracle.state:
		return false
	}
	t.Fatalf("%s in state %s: %v", op, m.oracle.state, err)
	return false
}

func (m *machine) complete(t *rapid.T, got bool) {
	want := m.oracle.state == tracker.StateSealed && m.oracle.open() == 0
	if got != want {
		t.Fatalf("completion reported: %v, want %v", got, want)
	}
	if want {
		m.oracle.state = tracker.StateCompleted
		m.completions[m.oracle.generation]++
	}
}

func (m *machine) AddGroups(t *rapid.T) {
	size := rapid.OneOf(rapid.IntRange(1, 3), rapid.SampledFrom([]int{64, 65, 8191, 8192}))
	sizes := rapid.SliceOfN(size, 1, 3).Draw(t, "sizes")
	var first int
	err := m.do(t, func(tx pgx.Tx) (err error) {
		first, err = tracker.AddGroups(m.Context(), tx, m.id, sizes)
		return err
	})
	if !m.wantState(t, "add", err, tracker.StateOpen) {
		return
	}
	if first != len(m.oracle.sizes) {
		t.Fatalf("first = %d, want %d", first, len(m.oracle.sizes))
	}
	for _, size := range sizes {
		pending := map[int]bool{}
		for i := range size {
			pending[i] = true
		}
		m.oracle.sizes = append(m.oracle.sizes, size)
		m.oracle.pending = append(m.oracle.pending, pending)
	}
}

func (m *machine) Seal(t *rapid.T) {
	var completed bool
	err := m.do(t, func(tx pgx.Tx) (err error) {
		completed, err = tracker.Seal(m.Context(), tx, m.id)
		return err
	})
	if !m.wantState(t, "seal", err, tracker.StateOpen, tracker.StateSealed, tracker.StateCompleted) {
		return
	}
	if m.oracle.state != tracker.StateOpen {
		if completed {
			t.Fatalf("a second seal reported completion")
		}
		return
	}
	m.oracle.state = tracker.StateSealed
	m.complete(t, completed)
}

// masks draws acks of existing groups, or now and then of one that does not fit, and the reason why.
func (m *machine) masks(t *rapid.T) (acks []tracker.Ack, fit bool) {
	fit = true
	for range rapid.IntRange(1, 4).Draw(t, "acks") {
		group := rapid.IntRange(0, max(len(m.oracle.sizes), 1)-1).Draw(t, "group")
		if len(m.oracle.sizes) == 0 || rapid.IntRange(0, 30).Draw(t, "stray") == 30 {
			return append(acks, some(len(m.oracle.sizes), 0)), false
		}
		size := m.oracle.sizes[group]
		lo := rapid.IntRange(0, size-1).Draw(t, "lo")
		hi := rapid.OneOf(rapid.Just(size), rapid.IntRange(lo+1, size)).Draw(t, "hi")
		if hi < bitfield.Size && hi == size && rapid.IntRange(0, 30).Draw(t, "past") == 30 {
			hi, fit = hi+1, false
		}
		if rapid.Bool().Draw(t, "all") {
			lo = 0
		}
		acks = append(acks, tracker.Ack{Group: group, Mask: bitfield.Range(lo, hi)})
	}
	return acks, fit
}

func wantFit(t *rapid.T, err error, fit bool) {
	var group *tracker.GroupError
	if fit != (err == nil) || (!fit && !errors.As(err, &group)) {
		t.Fatalf("masks fit: %v, but got %v", fit, err)
	}
}

func (m *machine) Ack(t *rapid.T) {
	acks, fit := m.masks(t)
	var acked tracker.Acked
	err := m.do(t, func(tx pgx.Tx) (err error) {
		acked, err = tracker.AckMasks(m.Context(), tx, m.id, acks)
		return err
	})
	if wantFit(t, err, fit); !fit {
		return
	}
	newly := 0
	for _, a := range acks {
		for i := range a.Mask.All() {
			if m.oracle.pending[a.Group][i] {
				newly++
				delete(m.oracle.pending[a.Group], i)
			}
		}
	}
	if acked.Newly != newly || (acked.Generation != 0) != acked.Completed {
		t.Fatalf("got %+v, want %d", acked, newly)
	}
	m.complete(t, acked.Completed)
}

func (m *machine) Rearm(t *rapid.T) {
	items, fit := m.masks(t)
	var generation int
	err := m.do(t, func(tx pgx.Tx) (err error) {
		generation, err = tracker.Rearm(m.Context(), tx, m.id, items)
		return err
	})
	if m.oracle.state == tracker.StateCancelled {
		m.wantState(t, "rearm", err)
		return
	}
	if wantFit(t, err, fit); !fit {
		return
	}
	m.oracle.generation++
	if generation != m.oracle.generation {
		t.Fatalf("generation %d, want %d", generation, m.oracle.generation)
	}
	for _, a := range items {
		for i := range a.Mask.All() {
			m.oracle.pending[a.Group][i] = true
		}
	}
	if m.oracle.state == tracker.StateCompleted {
		m.oracle.state = tracker.StateSealed
	}
}

func (m *machine) Cancel(t *rapid.T) {
	if rapid.IntRange(0, 5).Draw(t, "seldom") != 0 {
		return // a cancelled batch ends most of the story
	}
	err := m.do(t, func(tx pgx.Tx) error { return tracker.Cancel(m.Context(), tx, m.id) })
	if m.wantState(t, "cancel", err, tracker.StateOpen, tracker.StateSealed, tracker.StateCancelled) {
		m.oracle.state = tracker.StateCancelled
	}
}

// Check compares all that can be asked of a batch.
func (m *machine) Check(t *rapid.T) {
	got, err := tracker.Get(m.Context(), m.pool, m.id)
	if err != nil {
		t.Fatal(err)
	}
	items := int64(0)
	for _, size := range m.oracle.sizes {
		items += int64(size)
	}
	if got.State != m.oracle.state || got.Generation != m.oracle.generation || got.Groups != len(m.oracle.sizes) ||
		got.OpenGroups != m.oracle.open() || got.Items != items ||
		(got.CompletedAt != nil) != (got.State == tracker.StateCompleted) {
		t.Fatalf("got %+v, want %+v", got, m.oracle)
	}
	missing, err := tracker.Missing(m.Context(), m.pool, m.id)
	if err != nil || !slices.Equal(missing, m.oracle.missing()) {
		t.Fatalf("missing %v, want %v; %v", missing, m.oracle.missing(), err)
	}
	for generation, n := range m.completions {
		if n > 1 {
			t.Fatalf("generation %d completed %d times", generation, n)
		}
	}
}

func TestTrackerAgainstAnOracle(t *testing.T) {
	t.Parallel()
	b := setup(t)
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{bench: b, id: b.open(), completions: map[int]int{}}
		m.oracle = oracle{state: tracker.StateOpen, generation: 1}
		t.Repeat(rapid.StateMachineActions(m))
	})
}
