package bitfield_test

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/tranchehq/tranche/bitfield"
)

// edges are the positions where words, bytes and the set itself begin and end.
var edges = []int{0, 1, 7, 8, 62, 63, 64, 65, 127, 128, 4095, 4096, 4097, 8127, 8128, 8190, 8191}

func members(s bitfield.Set) []int { return slices.Collect(s.All()) }

func ints(lo, hi int) []int {
	var out []int
	for i := lo; i < hi; i++ {
		out = append(out, i)
	}
	return out
}

func TestRangeAtEveryEdge(t *testing.T) {
	t.Parallel()
	bounds := append(slices.Clone(edges), bitfield.Size)
	for _, lo := range bounds {
		for _, hi := range bounds {
			if lo > hi {
				continue
			}
			s := bitfield.Range(lo, hi)
			if got := members(s); !slices.Equal(got, ints(lo, hi)) {
				t.Errorf("Range(%d,%d) has %d members", lo, hi, len(got))
			}
			wantLo, wantHi := lo, hi
			if lo == hi {
				wantLo, wantHi = 0, 0
			}
			if gotLo, gotHi := s.Bounds(); gotLo != wantLo || gotHi != wantHi {
				t.Errorf("Range(%d,%d).Bounds() = %d, %d", lo, hi, gotLo, gotHi)
			}
			if s.Count() != hi-lo || s.Empty() != (lo == hi) {
				t.Errorf("Range(%d,%d): Count %d, Empty %v", lo, hi, s.Count(), s.Empty())
			}
		}
	}
	if bitfield.Full(100) != bitfield.Range(0, 100) || bitfield.Full(0) != (bitfield.Set{}) {
		t.Error("Full(n) is not Range(0, n)")
	}
}

func TestPanicsOutsideTheSet(t *testing.T) {
	t.Parallel()
	var s bitfield.Set
	for name, f := range map[string]func(){
		"Add(-1)":        func() { s.Add(-1) },
		"Add(8192)":      func() { s.Add(8192) },
		"Remove(-1)":     func() { s.Remove(-1) },
		"Remove(8192)":   func() { s.Remove(8192) },
		"Of(8192)":       func() { bitfield.Of(8192) },
		"Range(-1,1)":    func() { bitfield.Range(-1, 1) },
		"Range(2,1)":     func() { bitfield.Range(2, 1) },
		"Range(0,8193)":  func() { bitfield.Range(0, 8193) },
		"Full(-1)":       func() { bitfield.Full(-1) },
		"Full(8193)":     func() { bitfield.Full(8193) },
		"Add(MaxInt)":    func() { s.Add(math.MaxInt) },
		"Remove(MinInt)": func() { s.Remove(math.MinInt) },
	} {
		if !panics(f) {
			t.Errorf("%s does not panic", name)
		}
	}
	for _, i := range []int{-1, -64, 8192, math.MaxInt, math.MinInt} {
		if full := bitfield.Full(8192); full.Has(i) {
			t.Errorf("Has(%d) is true", i)
		}
	}
	if !s.Empty() {
		t.Error("a refused change changed the set")
	}
}

func panics(f func()) (yes bool) {
	defer func() { yes = recover() != nil }()
	f()
	return false
}

func TestSingleMembers(t *testing.T) {
	t.Parallel()
	for i := range bitfield.Size {
		s := bitfield.Of(i)
		lo, hi := s.Bounds()
		if !s.Has(i) || s.Count() != 1 || lo != i || hi != i+1 || s.Has(i-1) || s.Has(i+1) {
			t.Fatalf("Of(%d) is wrong: bounds %d, %d", i, lo, hi)
		}
		s.Remove(i)
		if !s.Empty() {
			t.Fatalf("%d cannot be removed", i)
		}
	}
}

// TestBinaryFormIsLeftmostBitFirst pins the bytes. Package tracker shows on a real server that get_bit agrees.
func TestBinaryFormIsLeftmostBitFirst(t *testing.T) {
	t.Parallel()
	for _, i := range edges {
		want := make([]byte, bitfield.Bytes)
		want[i/8] = 0x80 >> (i % 8)
		s := bitfield.Of(i)
		if got := s.AppendTo(nil); !bytes.Equal(got, want) {
			t.Errorf("bit %d is not the leftmost-first bit of byte %d", i, i/8)
		}
		back, err := bitfield.FromBytes(want)
		if err != nil || back != s {
			t.Errorf("bit %d does not come back: %v", i, err)
		}
	}
	s := bitfield.Of(0)
	if got := s.AppendTo([]byte("x")); len(got) != 1+bitfield.Bytes || got[0] != 'x' || got[1] != 0x80 {
		t.Error("AppendTo does not append")
	}
}

func TestFromBytesRefusesOtherLengths(t *testing.T) {
	t.Parallel()
	for _, n := range []int{0, 1, bitfield.Bytes - 1, bitfield.Bytes + 1} {
		if _, err := bitfield.FromBytes(make([]byte, n)); !errors.Is(err, bitfield.ErrLength) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

func TestTake(t *testing.T) {
	t.Parallel()
	spread := bitfield.Of(edges...)
	for _, n := range []int{math.MinInt, -1, 0, 1, 2, 5, 8, 16, 17, 18, 8192, math.MaxInt} {
		want := edges[:min(max(n, 0), len(edges))]
		if got := members(spread.Take(n)); !slices.Equal(got, want) {
			t.Errorf("Take(%d) = %v, want %v", n, got, want)
		}
		count := min(max(n, 0), 8192)
		if got := bitfield.Full(8192).Take(n); got != bitfield.Full(count) {
			t.Errorf("Take(%d) of the full set has %d members", n, got.Count())
		}
	}
	for n := range 130 {
		if got := bitfield.Range(60, 200).Take(n); got != bitfield.Range(60, 60+n) {
			t.Errorf("Take(%d) across words is wrong", n)
		}
	}
}

func TestSplitSizes(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		members, limit int
		want           []int
	}{
		{0, 500, []int{}},
		{1, 500, []int{1}},
		{500, 500, []int{500}},
		{501, 500, []int{251, 250}},
		{1820, 500, []int{455, 455, 455, 455}},
		{1000, 300, []int{250, 250, 250, 250}},
		{7, 3, []int{3, 2, 2}},
		{8192, 8192, []int{8192}},
		{8192, math.MaxInt, []int{8192}},
		{8192, 8191, []int{4096, 4096}},
		{3, 0, []int{1, 1, 1}},
		{3, math.MinInt, []int{1, 1, 1}},
	} {
		sizes := []int{}
		for _, piece := range bitfield.Full(tc.members).Split(tc.limit) {
			sizes = append(sizes, piece.Count())
		}
		if !slices.Equal(sizes, tc.want) {
			t.Errorf("%d members at a limit of %d: %v, want %v", tc.members, tc.limit, sizes, tc.want)
		}
	}
	if got := bitfield.Full(8192).Split(1); len(got) != 8192 || got[8191] != bitfield.Of(8191) {
		t.Error("a limit of 1 does not give single members")
	}
}

func TestRanges(t *testing.T) {
	t.Parallel()
	type run struct{ lo, hi int }
	for _, want := range [][]run{
		nil,
		{{0, 8192}},
		{{0, 1}},
		{{8191, 8192}},
		{{0, 64}},
		{{63, 65}},
		{{64, 128}, {129, 130}, {190, 4096}, {8000, 8192}},
		{{3, 6}, {9, 10}},
	} {
		var s bitfield.Set
		for _, r := range want {
			s = s.Or(bitfield.Range(r.lo, r.hi))
		}
		var got []run
		for lo, hi := range s.Ranges() {
			got = append(got, run{lo, hi})
		}
		if !slices.Equal(got, want) {
			t.Errorf("got %v, want %v", got, want)
		}
	}
}

func TestIterationStopsWhenTold(t *testing.T) {
	t.Parallel()
	s := bitfield.Of(1, 2, 70, 8000)
	var seen []int
	for i := range s.All() {
		if seen = append(seen, i); len(seen) == 2 {
			break
		}
	}
	for lo := range s.Ranges() {
		seen = append(seen, lo)
		break
	}
	if !slices.Equal(seen, []int{1, 2, 1}) {
		t.Errorf("saw %v", seen)
	}
}

func TestAlgebraLeavesItsOperandsAlone(t *testing.T) {
	t.Parallel()
	a, b := bitfield.Range(0, 100), bitfield.Range(64, 200)
	if a.Or(b) != bitfield.Range(0, 200) || a.And(b) != bitfield.Range(64, 100) || a.AndNot(b) != bitfield.Range(0, 64) {
		t.Error("Or, And or AndNot is wrong")
	}
	a.Take(1)
	a.Split(7)
	if a != bitfield.Range(0, 100) || b != bitfield.Range(64, 200) {
		t.Error("an operand changed")
	}
	if !a.Contains(&a) || a.Contains(&b) || !a.Contains(&bitfield.Set{}) {
		t.Error("Contains is wrong")
	}
}
