package pgbits_test

import (
	"errors"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/pgbits"
)

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
		if err := pgbits.OrEmpty(&set).ScanBits(tc.bits); !errors.Is(err, tc.want) != (name == "NULL") ||
			set.Empty() != (name == "NULL") {
			t.Errorf("%s: as an empty set got %v, %v", name, err, set)
		}
	}
}
