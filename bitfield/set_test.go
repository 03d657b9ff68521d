package bitfield_test

import (
	"math"
	"slices"
	"testing"

	"github.com/tranchehq/tranche/bitfield"
)

// edges are the positions where words, bytes and the set itself begin and end.
var edges = []int{0, 1, 7, 8, 62, 63, 64, 65, 127, 128, 4095, 4096, 4097, 8127, 8128, 8190, 8191}

func members(s bitfield.Set) []int { return slices.Collect(s.All()) }

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
