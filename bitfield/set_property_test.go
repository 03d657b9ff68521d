package bitfield_test

import (
	"bytes"
	"errors"
	"maps"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/tranchehq/tranche/bitfield"
)

// oracle is a set of integers as anyone would write it.
type oracle map[int]bool

func (o oracle) sorted() []int { return slices.Sorted(maps.Keys(o)) }

func (o oracle) keep(keep func(int) bool) oracle {
	out := oracle{}
	for i := range o {
		if keep(i) {
			out[i] = true
		}
	}
	return out
}

// position draws members with a liking for the edges of words.
func position() *rapid.Generator[int] {
	return rapid.OneOf(rapid.IntRange(0, bitfield.Size-1), rapid.SampledFrom(edges), rapid.IntRange(0, 130))
}

// pair draws the same set twice: as runs of neighbors and single members.
func pair() *rapid.Generator[both] {
	return rapid.Custom(func(t *rapid.T) both {
		b := both{oracle: oracle{}}
		for range rapid.IntRange(0, 6).Draw(t, "runs") {
			lo := position().Draw(t, "lo")
			hi := min(lo+rapid.IntRange(0, 300).Draw(t, "length"), bitfield.Size)
			b.set = b.set.Or(bitfield.Range(lo, hi))
			for i := lo; i < hi; i++ {
				b.oracle[i] = true
			}
		}
		for _, i := range rapid.SliceOfN(position(), 0, 20).Draw(t, "members") {
			b.set.Add(i)
			b.oracle[i] = true
		}
		return b
	})
}

type both struct {
	set    bitfield.Set
	oracle oracle
}

// extremes are numbers of members at and beyond all bounds.
var extremes = []int{math.MinInt, bitfield.Size - 1, bitfield.Size, math.MaxInt}

// machine drives a Set and the oracle through the same operations.
type machine struct{ both }

func (m *machine) Add(t *rapid.T) {
	i := position().Draw(t, "i")
	m.set.Add(i)
	m.oracle[i] = true
}

func (m *machine) Remove(t *rapid.T) {
	i := position().Draw(t, "i")
	m.set.Remove(i)
	delete(m.oracle, i)
}

func (m *machine) Or(t *rapid.T) {
	other := pair().Draw(t, "other")
	m.set = m.set.Or(other.set)
	maps.Copy(m.oracle, other.oracle)
}

func (m *machine) And(t *rapid.T) {
	other := pair().Draw(t, "other")
	m.set = m.set.And(other.set)
	m.oracle = m.oracle.keep(func(i int) bool { return other.oracle[i] })
}

func (m *machine) AndNot(t *rapid.T) {
	other := pair().Draw(t, "other")
	m.set = m.set.AndNot(other.set)
	m.oracle = m.oracle.keep(func(i int) bool { return !other.oracle[i] })
}

func (m *machine) Take(t *rapid.T) {
	n := rapid.OneOf(rapid.IntRange(-1, 400), rapid.SampledFrom(extremes)).Draw(t, "n")
	sorted := m.oracle.sorted()
	taken := members(m.set.Take(n))
	if !slices.Equal(taken, sorted[:min(max(n, 0), len(sorted))]) {
		t.Fatalf("Take(%d) = %v of %v", n, taken, sorted)
	}
}

func (m *machine) Split(t *rapid.T) {
	limit := rapid.OneOf(rapid.IntRange(-1, 70), rapid.IntRange(1, 9000), rapid.SampledFrom(extremes)).Draw(t, "limit")
	var union bitfield.Set
	var inOrder []int
	pieces := m.set.Split(limit)
	smallest, largest := bitfield.Size, 0
	for _, piece := range pieces {
		smallest, largest = min(smallest, piece.Count()), max(largest, piece.Count())
		inOrder = append(inOrder, members(piece)...)
		union = union.Or(piece)
	}
	most := min(max(limit, 1), bitfield.Size)
	fewest := (len(m.oracle) + most - 1) / most
	switch {
	case union != m.set || !slices.Equal(inOrder, m.oracle.sorted()):
		t.Fatalf("Split(%d): the pieces are not the set, each member once and in order", limit)
	case len(pieces) != fewest:
		t.Fatalf("Split(%d) of %d: %d pieces, want %d", limit, len(m.oracle), len(pieces), fewest)
	case !slices.IsSortedFunc(pieces, func(a, b bitfield.Set) int { return b.Count() - a.Count() }):
		t.Fatalf("Split(%d): a larger piece comes after a smaller one", limit)
	case len(pieces) > 0 && (largest > most || largest-smallest > 1 || smallest == 0):
		t.Fatalf("Split(%d): pieces from %d to %d members", limit, smallest, largest)
	}
}

func (m *machine) Contains(t *rapid.T) {
	other := pair().Draw(t, "other")
	want := len(other.oracle.keep(func(i int) bool { return !m.oracle[i] })) == 0
	if got := m.set.Contains(&other.set); got != want {
		t.Fatalf("Contains = %v, want %v", got, want)
	}
	part := m.set.And(other.set)
	if !m.set.Contains(&part) {
		t.Fatal("a set does not contain its own part")
	}
}

// Check compares everything that can be asked of a set.
func (m *machine) Check(t *rapid.T) {
	sorted := m.oracle.sorted()
	if got := members(m.set); !slices.Equal(got, sorted) {
		t.Fatalf("members are %v, want %v", got, sorted)
	}
	var lo, hi int
	if len(sorted) > 0 {
		lo, hi = sorted[0], sorted[len(sorted)-1]+1
	}
	if gotLo, gotHi := m.set.Bounds(); gotLo != lo || gotHi != hi {
		t.Fatalf("Bounds = %d, %d, want %d, %d", gotLo, gotHi, lo, hi)
	}
	if m.set.Count() != len(sorted) || m.set.Empty() != (len(sorted) == 0) {
		t.Fatalf("Count = %d, Empty = %v, want %d", m.set.Count(), m.set.Empty(), len(sorted))
	}
	var unrolled []int
	last := -1
	for lo, hi := range m.set.Ranges() {
		if lo <= last || hi <= lo {
			t.Fatalf("range [%d,%d) after %d", lo, hi, last)
		}
		for i := lo; i < hi; i++ {
			unrolled = append(unrolled, i)
		}
		last = hi
	}
	if !slices.Equal(unrolled, sorted) {
		t.Fatal("Ranges does not cover the members")
	}
	back, err := bitfield.FromBytes(m.set.AppendTo(nil))
	if err != nil || back != m.set {
		t.Fatalf("the binary form does not come back: %v", err)
	}
}

func TestSetAgainstAMap(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &machine{both{oracle: oracle{}}}
		t.Repeat(rapid.StateMachineActions(m))
	})
}

func FuzzBinaryForm(f *testing.F) {
	full := bitfield.Full(bitfield.Size)
	some := bitfield.Of(edges...)
	f.Add(full.AppendTo(nil))
	f.Add(some.AppendTo(nil))
	f.Add([]byte{})
	f.Add(make([]byte, bitfield.Bytes+1))
	f.Fuzz(func(t *testing.T, b []byte) {
		set, err := bitfield.FromBytes(b)
		if len(b) != bitfield.Bytes {
			if !errors.Is(err, bitfield.ErrLength) {
				t.Fatalf("%d bytes: %v", len(b), err)
			}
			return
		}
		if err != nil || !bytes.Equal(set.AppendTo(nil), b) {
			t.Fatalf("the bytes do not come back: %v", err)
		}
		for i := range set.All() {
			if b[i/8]&(0x80>>(i%8)) == 0 {
				t.Fatalf("member %d is not set in the bytes", i)
			}
		}
	})
}
