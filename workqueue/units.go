package workqueue

import (
	"encoding/json"
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Adaptive is a number or auto, which nodes find. Its text is 500 or auto; its JSON 500, "500" or "auto".
type Adaptive struct {
	Value int // with Auto the upper bound; 0: the default
	Auto  bool
}

const auto = "auto"

var errNoAdaptive = errors.New("want a whole number like 500, or auto")

// String returns the text form, without the upper bound of auto.
func (a Adaptive) String() string {
	if a.Auto {
		return auto
	}
	return strconv.Itoa(a.Value)
}

// MarshalText returns the text form.
func (a Adaptive) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText parses a number or auto.
func (a *Adaptive) UnmarshalText(b []byte) error {
	if string(b) == auto {
		*a = Adaptive{Auto: true}
		return nil
	}
	n, err := WholeNumber(string(b))
	if err != nil {
		return errNoAdaptive
	}
	*a = Adaptive{Value: n}
	return nil
}

// MarshalJSON returns a number or "auto".
func (a Adaptive) MarshalJSON() ([]byte, error) {
	if a.Auto {
		return json.Marshal(auto)
	}
	return json.Marshal(a.Value)
}

// UnmarshalJSON parses a number, or a string with the text form.
func (a *Adaptive) UnmarshalJSON(b []byte) error { return unmarshalEither(b, a) }

// Bytes is a size: in text 512KiB, 2MiB or a number of bytes; in JSON a number, or such a string.
type Bytes int

var errNoSize = errors.New("want a size like 512KiB, 2MiB or a number of bytes")

// String uses the largest unit that gives a whole number.
func (n Bytes) String() string {
	for i, name := range slices.Backward(byteUnits()) {
		if unit := Bytes(1) << (10 * (i + 1)); n != 0 && n%unit == 0 {
			return strconv.Itoa(int(n/unit)) + name
		}
	}
	return strconv.Itoa(int(n))
}

func byteUnits() []string { return []string{"KiB", "MiB", "GiB", "TiB"} }

// UnmarshalText parses a size.
func (n *Bytes) UnmarshalText(b []byte) error {
	digits, shift := string(b), 0
	for i, unit := range byteUnits() {
		if number, ok := strings.CutSuffix(digits, unit); ok {
			digits, shift = strings.TrimSuffix(number, " "), 10*(i+1)
			break
		}
	}
	size, err := WholeNumber(digits)
	if err != nil || size < 0 || size > math.MaxInt>>shift {
		return errNoSize
	}
	*n = Bytes(size << shift)
	return nil
}

// MarshalJSON returns a number of bytes.
func (n Bytes) MarshalJSON() ([]byte, error) { return json.Marshal(int(n)) }

// UnmarshalJSON parses a number of bytes, or a string with the text form.
func (n *Bytes) UnmarshalJSON(b []byte) error { return unmarshalEither(b, n) }

// Duration is a duration: 90s, 2m or 1h30m, in JSON as a string.
type Duration time.Duration

var errNoDuration = errors.New("want a duration like 90s, 2m or 1h30m")

// String returns the text form.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText returns the text form.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText parses a duration.
func (d *Duration) UnmarshalText(b []byte) error {
	parsed, err := time.ParseDuration(string(b))
	if err != nil {
		return errNoDuration
	}
	*d = Duration(parsed)
	return nil
}

func unmarshalEither(b []byte, into interface{ UnmarshalText([]byte) error }) error {
	var text string
	if len(b) > 0 && b[0] == '"' {
		if err := json.Unmarshal(b, &text); err != nil {
			return err
		}
		return into.UnmarshalText([]byte(text))
	}
	return into.UnmarshalText(b)
}

var errNoNumber = errors.New("want a whole number like 500")

// WholeNumber accepts only decimal digits and a sign: 0x10, 010, +1 and 1_000 are ambiguous.
func WholeNumber(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || strconv.Itoa(n) != text {
		return 0, errNoNumber
	}
	return n, nil
}

var errNoRate = errors.New("want items a second as a number like 1000 or 0.5")

// ParseRate parses items a second. It accepts only plain decimals; Go would also accept 0x1p3, 1_000 and inf.
func ParseRate(text string) (float64, error) {
	for _, c := range text {
		if (c < '0' || c > '9') && c != '.' && c != '-' {
			return math.NaN(), errNoRate
		}
	}
	rate, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return math.NaN(), errNoRate
	}
	return rate, nil
}
