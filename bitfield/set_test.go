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
