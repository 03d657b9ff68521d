// Package bitfield implements the bit sets that hold the state of items, and the IDs of tracked items.
//
// A block is 8192 consecutive items, and a [Set] has one bit for each. All operations on items (claim, record,
// release) are unions, intersections and differences of sets, in PostgreSQL on bit strings and here on the same
// bytes.
//
// Values may be copied freely, but are not safe for concurrent modification.
package bitfield

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/bits"
)

// Size is the number of bits of a Set: the items of a block.
const Size = 8192

// Bytes is the length of a Set's binary form.
const Bytes = Size / 8

const words = Size / 64

// ErrLength is returned for a binary form of another length than Bytes.
var ErrLength = errors.New("bitfield: a set is exactly 1024 bytes")

// Set is a set of integers from 0 to Size-1. The zero value is empty; sets compare with ==.
//
// Bit 0 is the leftmost bit of the binary form, as in a PostgreSQL bit string: get_bit(plane, i) in SQL equals
// Has(i).
type Set [words]uint64

// Full returns the set {0, …, n-1}. It panics if n is outside 0 to Size.
func Full(n int) Set { return Range(0, n) }

// Range returns the set {lo, …, hi-1}. It panics if the bounds are not 0 ≤ lo ≤ hi ≤ Size.
func Range(lo, hi int) Set {
	if lo < 0 || lo > hi || hi > Size {
		panic(fmt.Sprintf("bitfield: range [%d,%d) is not within [0,%d)", lo, hi, Size))
	}
	var s Set
	for w := lo / 64; w < words && w*64 < hi; w++ {
		s[w] = ones(lo-w*64) &^ ones(hi-w*64)
	}
	return s
}

// ones returns a word with all bits set from position n, counted from the left, to its right end.
func ones(n int) uint64 {
	switch {
	case n <= 0:
		return ^uint64(0)
	case n >= 64:
		return 0
	default:
		return ^uint64(0) >> n
	}
}

// Of returns the set of the given members. It panics if one is outside 0 to Size-1.
func Of(members ...int) Set {
	var s Set
	for _, m := range members {
		s.Add(m)
	}
	return s
}

// FromBytes decodes the binary form.
func FromBytes(b []byte) (Set, error) {
	var s Set
	if len(b) != Bytes {
		return s, fmt.Errorf("%w, not %d", ErrLength, len(b))
	}
	for w := range s {
		s[w] = binary.BigEndian.Uint64(b[w*8:])
	}
	return s, nil
}

// AppendTo appends the binary form: Bytes long, most significant bit first.
func (s *Set) AppendTo(b []byte) []byte {
	for _, w := range s {
		b = binary.BigEndian.AppendUint64(b, w)
	}
	return b
}

// Add adds i. It panics if i is outside 0 to Size-1.
func (s *Set) Add(i int) { s[i>>6] |= bit(i) }

// Remove removes i. It panics if i is outside 0 to Size-1.
func (s *Set) Remove(i int) { s[i>>6] &^= bit(i) }

// bit returns the word with only member i's bit.
func bit(i int) uint64 { return 1 << 63 >> (uint(i) & 63) }

// Has reports whether i is a member; false for any i outside 0 to Size-1.
func (s *Set) Has(i int) bool {
	return i >= 0 && i < Size && s[i>>6]&bit(i) != 0
}

// Or returns the union.
func (s Set) Or(t Set) Set {
	for w := range s {
		s[w] |= t[w]
	}
	return s
}

// And returns the intersection.
func (s Set) And(t Set) Set {
	for w := range s {
		s[w] &= t[w]
	}
	return s
}

// AndNot returns the members of s that are not in t.
func (s Set) AndNot(t Set) Set {
	for w := range s {
		s[w] &^= t[w]
	}
	return s
}

// Contains reports whether every member of t is in s.
func (s *Set) Contains(t *Set) bool {
	for w := range s {
		if t[w]&^s[w] != 0 {
			return false
		}
	}
	return true
}

// Empty reports whether the set has no members.
func (s *Set) Empty() bool {
	for _, w := range s {
		if w != 0 {
			return false
		}
	}
	return true
}

// Count returns the number of members.
func (s *Set) Count() int {
	n := 0
	for _, w := range s {
		n += bits.OnesCount64(w)
	}
	return n
}

// All yields the members in ascending order. Members added or removed during the iteration may or may not be seen.
func (s *Set) All() iter.Seq[int] {
	return func(yield func(int) bool) {
		for w, word := range s {
			for word != 0 {
				lead := bits.LeadingZeros64(word)
				if !yield(w*64 + lead) {
					return
				}
				word &^= bit(lead)
			}
		}
	}
}

// Bounds returns the smallest member and one past the largest; 0, 0 if the set is empty.
func (s *Set) Bounds() (lo, hi int) {
	lo = -1
	for w, word := range s {
		if word == 0 {
			continue
		}
		if lo < 0 {
			lo = w*64 + bits.LeadingZeros64(word)
		}
		hi = w*64 + 64 - bits.TrailingZeros64(word)
	}
	return max(lo, 0), hi
}

// Ranges yields the members as maximal ranges [lo,hi), in ascending order: {3, 4, 5, 9} is [3,6) and [9,10).
func (s *Set) Ranges() iter.Seq2[int, int] {
	return func(yield func(lo, hi int) bool) {
		for lo := s.next(0, 0); lo < Size; {
			hi := s.next(lo, ^uint64(0))
			if !yield(lo, hi) {
				return
			}
			lo = s.next(hi, 0)
		}
	}
}

// next returns the first position from i whose bit differs from skip (all zeros or all ones), or Size.
func (s *Set) next(i int, skip uint64) int {
	for i < Size {
		if word := (s[i>>6] ^ skip) & ones(i&63); word != 0 {
			return i&^63 + bits.LeadingZeros64(word)
		}
		i = i&^63 + 64
	}
	return Size
}

// Take returns the n smallest members, or all if there are fewer. n below 1 takes none.
func (s Set) Take(n int) Set {
	for w, word := range s {
		s[w] = first(word, n)
		n -= min(bits.OnesCount64(word), max(n, 0))
	}
	return s
}

// first returns the n leftmost ones of a word, or all if there are fewer.
func first(word uint64, n int) uint64 {
	for drop := bits.OnesCount64(word) - max(n, 0); drop > 0; drop-- {
		word &= word - 1 // the rightmost one
	}
	return word
}

// Split cuts the set into the fewest pieces of at most limit members, as evenly as possible: 1820 members at a limit
// of 500 make four pieces of 455. Sizes differ by at most one, larger first, and pieces are in ascending order. A
// limit below 1 counts as 1; an empty set has no pieces.
func (s Set) Split(limit int) []Set {
	limit = min(max(limit, 1), Size)
	left := s.Count()
	pieces := (left + limit - 1) / limit
	cut := make([]Set, pieces)
	w := 0
	for p := range cut {
		size := (left + pieces - p - 1) / (pieces - p)
		left -= size
		for size > 0 {
			part := first(s[w], size)
			cut[p][w] = part
			s[w] &^= part
			size -= bits.OnesCount64(part)
			if s[w] == 0 {
				w++
			}
		}
	}
	return cut
}
