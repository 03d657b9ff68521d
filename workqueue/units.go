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

// Adaptive is a number, or auto: found while running. In texts it is 500 or auto; in JSON 500, "500" or "auto".
type Adaptive struct {
	Value int // with Auto the upper bound; 0: the default one
	Auto  bool
}

const auto = "auto"

var errNoAdaptive = errors.New("want a whole number like 500, or auto")

// String returns the text form. The upper bound of an auto is not part of it.
func (a Adaptive) String() string {
	if a.Auto {
		return auto
	}
	return strconv.Itoa(a.Value)
}

// MarshalText writes the text form.
func (a Adaptive) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads a number or auto.
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

// MarshalJSON writes a number, or "auto".
func (a Adaptive) MarshalJSON() ([]byte, error) {
	if a.Auto {
		return json.Marshal(auto)
	}
	return json.Marshal(a.Value)
}

// UnmarshalJSON reads a number, or a string with the text form.
func (a *Adaptive) UnmarshalJSON(b []byte) error { return unmarshalEither(b, a) }

// Bytes is a size: in texts 512KiB, 2MiB or a number of bytes; in JSON a number, or a string like these.
type Bytes int

var errNoSize = errors.New("want a size like 512KiB, 2MiB or a number of bytes")

// String returns the size with the largest unit of which it is a whole number.
func (n Bytes) String() string {
	for i, name := range slices.Backward(byteUnits()) {
		if unit := Bytes(1) << (10 * (i + 1)); n != 0 && n%unit == 0 {
			return strconv.Itoa(int(n/unit)) + name
		}
	}
	return strconv.Itoa(int(n))
}

// byteUnits are the units of sizes, each 1024 of the one before.
func byteUnits() []string { return []string{"KiB", "MiB", "GiB", "TiB"} }

// UnmarshalText reads a size.
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

// MarshalJSON writes a number of bytes.
func (n Bytes) MarshalJSON() ([]byte, error) { return json.Marshal(int(n)) }

// UnmarshalJSON reads a number of bytes, or a string with the text form.
func (n *Bytes) UnmarshalJSON(b []byte) error { return unmarshalEither(b, n) }

// Duration is a time span: 90s, 2m or 1h30m, in JSON as a string.
type Duration time.Duration

var errNoDuration = errors.New("want a duration like 90s, 2m or 1h30m")

// String returns the text form.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes the text form.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads a duration.
func (d *Duration) UnmarshalText(b []byte) error {
	parsed, err := time.ParseDuration(string(b))
	if err != nil {
		return errNoDuration
	}
	*d = Duration(parsed)
	return nil
}

// unmarshalEither reads a JSON number or string by its text.
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

// WholeNumber takes decimal digits and a sign only: 0x10, 010, +1 and 1_000 are other things to other readers.
func WholeNumber(text string) (int, error) {
	n, err := strconv.Atoi(text)
	if err != nil || strconv.Itoa(n) != text {
		return 0, errNoNumber
	}
	return n, nil
}

var errNoRate = errors.New("want items a second as a number like 1000 or 0.5")

// ParseRate reads items a second. It takes plain decimal numbers only: 0x1p3, 1_000 and inf are numbers to Go as well.
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
