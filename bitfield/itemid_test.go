package bitfield_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/bitfield"
)

const batchText = "0198c5f2-7a3e-7c11-9d0e-3b1f6a2c4d58"

var batchID = [16]byte{0x01, 0x98, 0xc5, 0xf2, 0x7a, 0x3e, 0x7c, 0x11, 0x9d, 0x0e, 0x3b, 0x1f, 0x6a, 0x2c, 0x4d, 0x58}

func TestItemIDText(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		id   bitfield.ItemID
		text string
	}{
		{bitfield.ItemID{Batch: batchID, Group: 12, Index: 8191}, batchText + ":12:8191"},
		{bitfield.ItemID{}, "00000000-0000-0000-0000-000000000000:0:0"},
		{bitfield.ItemID{Batch: batchID, Group: bitfield.MaxGroup}, batchText + ":2147483647:0"},
	} {
		if got := tc.id.String(); got != tc.text {
			t.Errorf("got %s, want %s", got, tc.text)
		}
		if got, err := bitfield.ParseItemID(tc.text); err != nil || got != tc.id {
			t.Errorf("%s: got %v, %v", tc.text, got, err)
		}
	}
}

func TestParseItemIDNamesThePlace(t *testing.T) {
	t.Parallel()
	for text, at := range map[string]int{
		"":                          0,
		"x":                         0,
		batchText:                   36,
		batchText + ":":             37,
		batchText + ":1":            38,
		batchText + ":1:":           39,
		batchText + ":1:8192":       39,
		batchText + ":2147483648:0": 37,
		batchText + ":99999999999999999999999999:0":             37,
		batchText + ":01:0":                                     37,
		batchText + ":1:00":                                     39,
		batchText + ":-1:0":                                     37,
		batchText + ":+1:0":                                     37,
		batchText + ":1:0 ":                                     40,
		batchText + ":1:0:0":                                    40,
		batchText + " :1:0":                                     36,
		" " + batchText + ":1:0":                                0,
		strings.ToUpper(batchText) + ":1:0":                     4,
		strings.ReplaceAll(batchText, "-", "") + ":1:0":         8,
		batchText[:35] + "g:1:0":                                35,
		batchText[:23] + "_" + batchText[24:] + ":1:0":          23,
		"{" + batchText + "}:1:0":                               0,
		batchText + ":٣:0":                                      37,
		strings.Repeat("a", 1000):                               8,
		batchText + ":1:" + "\x00":                              39,
		"0198c5f2\x007a3e-7c11-9d0e-3b1f6a2c4d58" + ":1:1":      8,
		batchText + ":1:1\x00" + strings.Repeat("1", 1_000_000): 40,
	} {
		_, err := bitfield.ParseItemID(text)
		var bad *bitfield.ItemIDError
		if !errors.As(err, &bad) || !errors.Is(err, bitfield.ErrItemID) {
			t.Errorf("%.60q: got %v", text, err)
			continue
		}
		if bad.At != at {
			t.Errorf("%.60q: at %d, want %d", text, bad.At, at)
		}
		if len(err.Error()) > 400 {
			t.Errorf("%.60q: the error has %d characters", text, len(err.Error()))
		}
	}
}

func TestItemIDOutOfRangeIsNotWritten(t *testing.T) {
	t.Parallel()
	for _, id := range []bitfield.ItemID{{Group: -1}, {Index: -1}, {Index: 8192}, {Group: bitfield.MaxGroup + 1}} {
		if text, err := id.MarshalText(); !errors.Is(err, bitfield.ErrItemID) {
			t.Errorf("%+v: got %s, %v", id, text, err)
		}
	}
}

func FuzzParseItemID(f *testing.F) {
	f.Add("::")
	for _, seed := range []string{":12:8191", "", ":00:1", ":1:99999"} {
		f.Add(batchText + seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		id, err := bitfield.ParseItemID(text)
		if err != nil {
			var bad *bitfield.ItemIDError
			if !errors.As(err, &bad) || bad.At < 0 || bad.At > len(text) || bad.Error() == "" {
				t.Fatalf("%q: %#v", text, err)
			}
			return
		}
		if id.String() != text {
			t.Fatalf("%q is not the one spelling of %s", text, id)
		}
		if _, err := id.MarshalText(); err != nil {
			t.Fatalf("%q was read but cannot be written: %v", text, err)
		}
	})
}
