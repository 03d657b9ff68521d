package bitfield_test

import (
	"testing"

	"github.com/tranchehq/tranche/bitfield"
)

// everyOther is the worst case for walks: no run is longer than one member.
func everyOther() bitfield.Set {
	var s bitfield.Set
	for i := 0; i < bitfield.Size; i += 2 {
		s.Add(i)
	}
	return s
}

func BenchmarkSplit(b *testing.B) {
	full := bitfield.Full(bitfield.Size)
	for name, limit := range map[string]int{"limit=500": 500, "limit=1": 1} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				full.Split(limit)
			}
		})
	}
}

func BenchmarkTake(b *testing.B) {
	s := everyOther()
	for b.Loop() {
		s = s.Or(s.Take(500))
	}
}

func BenchmarkAll(b *testing.B) {
	s := everyOther()
	sum := 0
	for b.Loop() {
		for i := range s.All() {
			sum += i
		}
	}
}

func BenchmarkRanges(b *testing.B) {
	s := everyOther()
	sum := 0
	for b.Loop() {
		for lo, hi := range s.Ranges() {
			sum += hi - lo
		}
	}
}

func BenchmarkAnd(b *testing.B) {
	s, u := everyOther(), bitfield.Full(8000)
	for b.Loop() {
		s = s.And(u)
	}
}

func BenchmarkCount(b *testing.B) {
	s := everyOther()
	for b.Loop() {
		s.Count()
	}
}

func BenchmarkBinaryForm(b *testing.B) {
	s := everyOther()
	buf := make([]byte, 0, bitfield.Bytes)
	for b.Loop() {
		if _, err := bitfield.FromBytes(s.AppendTo(buf)); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkParseItemID(b *testing.B) {
	for b.Loop() {
		if _, err := bitfield.ParseItemID(batchText + ":12:8191"); err != nil {
			b.Fatal(err)
		}
	}
}
