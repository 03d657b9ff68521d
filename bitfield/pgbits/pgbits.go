// Package pgbits converts sets to and from PostgreSQL's bit(8192) with pgx, in binary format and with one copy. Bit i
// in SQL (get_bit) is member i in Go. Anything but exactly 8192 bits, including NULL, is an error. Its functions have
// no state.
package pgbits

import (
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tranchehq/tranche/bitfield"
)

// ErrNull is returned for a NULL in place of a set.
var ErrNull = errors.New("pgbits: NULL is not a set")

// ErrLength is returned for a bit string of another length than bitfield.Size.
var ErrLength = errors.New("pgbits: a set is exactly 8192 bits")

// Of returns the set as a parameter of type bit(8192).
func Of(s bitfield.Set) pgtype.Bits {
	return wrap(s.AppendTo(make([]byte, 0, bitfield.Bytes)))
}

// Slice returns sets as one parameter of type bit[] or varbit[], never NULL: `unnest($1::bit(8192)[])`.
func Slice(sets []bitfield.Set) []pgtype.Bits {
	all := make([]byte, 0, len(sets)*bitfield.Bytes)
	out := make([]pgtype.Bits, len(sets))
	for i := range sets {
		start := len(all)
		all = sets[i].AppendTo(all)
		out[i] = wrap(all[start:len(all):len(all)])
	}
	return out
}

// Set converts a scanned bit(8192). Errors wrap ErrNull or ErrLength.
func Set(b pgtype.Bits) (bitfield.Set, error) {
	switch {
	case !b.Valid:
		return bitfield.Set{}, ErrNull
	case b.Len != bitfield.Size || len(b.Bytes) != bitfield.Bytes:
		return bitfield.Set{}, fmt.Errorf("%w, not %d", ErrLength, b.Len)
	}
	return bitfield.FromBytes(b.Bytes)
}

func wrap(b []byte) pgtype.Bits {
	return pgtype.Bits{Bytes: b, Len: bitfield.Size, Valid: true}
}

// Value is a Set that pgx encodes and scans. Scan into a Set with Into(&set).
type Value bitfield.Set

// Into returns s as a scan target: row.Scan(pgbits.Into(&ready)).
func Into(s *bitfield.Set) *Value { return (*Value)(s) }

// BitsValue implements pgtype.BitsValuer.
func (v Value) BitsValue() (pgtype.Bits, error) { return Of(bitfield.Set(v)), nil }

// OrEmpty is [Into] that scans NULL as an empty set.
func OrEmpty(s *bitfield.Set) pgtype.BitsScanner { return (*orEmpty)(s) }

type orEmpty bitfield.Set

// ScanBits implements pgtype.BitsScanner.
func (o *orEmpty) ScanBits(b pgtype.Bits) error {
	if !b.Valid {
		*o = orEmpty{}
		return nil
	}
	return (*Value)(o).ScanBits(b)
}

// ScanBits implements pgtype.BitsScanner. NULL is an error.
func (v *Value) ScanBits(b pgtype.Bits) error {
	s, err := Set(b)
	if err != nil {
		return err
	}
	*v = Value(s)
	return nil
}
