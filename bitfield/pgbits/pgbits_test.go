package pgbits_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
)

// roundTrip encodes and scans through pgx's own plans for the type.
func roundTrip(t *testing.T, oid uint32, format int16, param, target any) {
	t.Helper()
	m := pgtype.NewMap()
	wire, err := m.Encode(oid, format, param, nil)
	if err != nil {
		t.Fatalf("encode: %v", err)
	}
	if err := m.Scan(oid, format, wire, target); err != nil {
		t.Fatalf("scan: %v", err)
	}
}

func TestScalarRoundTrip(t *testing.T) {
	t.Parallel()
	set := bitfield.Of(0, 1, 63, 64, 127, 4096, 8191)
	for _, format := range []int16{pgtype.BinaryFormatCode, pgtype.TextFormatCode} {
		var byInto, byValue bitfield.Set
		roundTrip(t, pgtype.BitOID, format, pgbits.Of(set), pgbits.Into(&byInto))
		roundTrip(t, pgtype.VarbitOID, format, pgbits.Value(set), pgbits.Into(&byValue))
		if byInto != set || byValue != set {
			t.Errorf("format %d: the set did not survive", format)
		}
	}
}

func TestArrayRoundTrip(t *testing.T) {
	t.Parallel()
	sets := []bitfield.Set{{}, bitfield.Full(8192), bitfield.Of(5), bitfield.Range(64, 129)}
	var got []pgtype.Bits
	roundTrip(t, pgtype.BitArrayOID, pgtype.BinaryFormatCode, pgbits.Slice(sets), &got)
	back := make([]bitfield.Set, len(got))
	for i, b := range got {
		s, err := pgbits.Set(b)
		if err != nil {
			t.Fatal(err)
		}
		back[i] = s
	}
	if !slices.Equal(back, sets) {
		t.Error("the sets did not survive")
	}
	var values []pgbits.Value
	roundTrip(t, pgtype.VarbitArrayOID, pgtype.BinaryFormatCode, pgbits.Slice(sets), &values)
	if len(values) != len(sets) || bitfield.Set(values[3]) != sets[3] {
		t.Error("the sets did not survive as values")
	}
}

func TestSliceOfNothingIsAnEmptyArray(t *testing.T) {
	t.Parallel()
	if got := pgbits.Slice(nil); got == nil || len(got) != 0 {
		t.Errorf("got %#v, want an empty array", got)
	}
}

func TestSetRefusesWhatIsNotASet(t *testing.T) {
	t.Parallel()
	full := make([]byte, bitfield.Bytes)
	for name, tc := range map[string]struct {
		bits pgtype.Bits
		want error
	}{
		"NULL":           {pgtype.Bits{}, pgbits.ErrNull},
		"empty":          {pgtype.Bits{Valid: true}, pgbits.ErrLength},
		"one bit short":  {pgtype.Bits{Bytes: full, Len: 8191, Valid: true}, pgbits.ErrLength},
		"one byte short": {pgtype.Bits{Bytes: full[1:], Len: 8192, Valid: true}, pgbits.ErrLength},
		"one byte more":  {pgtype.Bits{Bytes: append(slices.Clone(full), 0), Len: 8200, Valid: true}, pgbits.ErrLength},
	} {
		if _, err := pgbits.Set(tc.bits); !errors.Is(err, tc.want) {
			t.Errorf("%s: got %v, want %v", name, err, tc.want)
		}
		set := bitfield.Of(7)
		if err := pgbits.Into(&set).ScanBits(tc.bits); !errors.Is(err, tc.want) {
			t.Errorf("%s: scan got %v, want %v", name, err, tc.want)
		}
		if set != bitfield.Of(7) {
			t.Errorf("%s: a refused scan changed the set", name)
		}
	}
}
