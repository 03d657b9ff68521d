package cli

import (
	"fmt"
	"time"
)

// PastTime is a point in time on the command line.
type PastTime struct{ time.Time }

// UnmarshalText reads a duration back from now, a date, or a time with or without its zone.
func (p *PastTime) UnmarshalText(text []byte) (err error) {
	said := string(text)
	if back, err := time.ParseDuration(said); err == nil && back >= 0 {
		p.Time = time.Now().Add(-back)
		return nil
	}
	for _, layout := range []string{time.DateOnly, time.DateTime, "2006-01-02T15:04:05", "2006-01-02 15:04"} {
		if p.Time, err = time.ParseInLocation(layout, said, time.Local); err == nil {
			return nil
		}
	}
	if p.Time, err = time.Parse(time.RFC3339, said); err != nil {
		return fmt.Errorf("%q is no time; give 90m, 24h, 2026-01-31 or 2026-01-31T15:04:05Z", said)
	}
	return nil
}
