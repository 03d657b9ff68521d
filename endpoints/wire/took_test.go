package wire

import (
	"testing"
	"time"
)

func TestATimeIsWrittenAndReadInMilliseconds(t *testing.T) {
	t.Parallel()
	for d, text := range map[time.Duration]string{0: "0", 1500 * time.Microsecond: "1.5", 40 * time.Millisecond: "40",
		3 * time.Hour: "10800000", 999 * time.Nanosecond: "0", -time.Second: "0"} {
		if got := FormatTook(d); got != text {
			t.Errorf("%s is written %q; want %q", d, got, text)
		}
	}
	for text, want := range map[string]time.Duration{"": 0, "12": 12 * time.Millisecond, "0.25": 250 * time.Microsecond,
		"-1": 0, "NaN": 0, "Inf": 0, "1e300": 0, "soon": 0} {
		if got := parseTook(text); got != want {
			t.Errorf("%q is read as %s; want %s", text, got, want)
		}
	}
}
