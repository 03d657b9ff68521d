package client

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"
)

// Sizing is a number, or auto: nodes find it at run time. In JSON it is 500 or "auto".
type Sizing struct {
	Value int
	Auto  bool
}

const auto = "auto"

// String returns the number, or auto.
func (s Sizing) String() string {
	if s.Auto {
		return auto
	}
	return strconv.Itoa(s.Value)
}

// MarshalJSON writes a number, or "auto".
func (s Sizing) MarshalJSON() ([]byte, error) {
	if s.Auto {
		return json.Marshal(auto)
	}
	return json.Marshal(s.Value)
}

// UnmarshalJSON reads a number, or a string with a number or auto.
func (s *Sizing) UnmarshalJSON(b []byte) error {
	*s = Sizing{}
	text := string(b)
	if len(b) > 0 && b[0] == '"' {
		if err := json.Unmarshal(b, &text); err != nil {
			return err
		}
		if text == auto {
			s.Auto = true
			return nil
		}
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return errors.New("want a whole number like 500, or auto")
	}
	s.Value = n
	return nil
}

// Duration is a time span; in JSON a text like 90s, 2m or 1h30m.
type Duration time.Duration

// String returns the text form.
func (d Duration) String() string { return time.Duration(d).String() }

// MarshalText writes the text form.
func (d Duration) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// UnmarshalText reads the text form.
func (d *Duration) UnmarshalText(b []byte) error {
	parsed, err := time.ParseDuration(string(b))
	if err != nil {
		return fmt.Errorf("want a duration like 90s, 2m or 1h30m: %w", err)
	}
	*d = Duration(parsed)
	return nil
}
