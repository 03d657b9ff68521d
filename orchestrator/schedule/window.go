package schedule

import (
	"fmt"
	"strconv"
	"time"
)

// Window says when runs may start, and when they should have ended: times of day in the schedule's zone. A window may
// go past midnight.
type Window struct {
	NotBefore *TimeOfDay `json:"not_before,omitempty"` // a due time outside waits until then
	DoneBy    *TimeOfDay `json:"done_by,omitempty"`    // of the same night
}

// TimeOfDay is minutes since midnight, as a clock shows them: 22:00.
type TimeOfDay int

// String returns it as 22:00.
func (t TimeOfDay) String() string { return fmt.Sprintf("%02d:%02d", int(t)/60, int(t)%60) }

// MarshalText writes it as 22:00.
func (t TimeOfDay) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// UnmarshalText reads 22:00.
func (t *TimeOfDay) UnmarshalText(text []byte) error {
	if len(text) == 5 && text[2] == ':' {
		hour, err := strconv.ParseUint(string(text[:2]), 10, 8)
		minute, err2 := strconv.ParseUint(string(text[3:]), 10, 8)
		if err == nil && err2 == nil && hour < 24 && minute < 60 {
			*t = TimeOfDay(hour*60 + minute)
			return nil
		}
	}
	return fmt.Errorf("%.40q is no time of day; want one like 06:00 or 22:30, in quotes", text)
}

// on returns when the clock reaches the time of day on the day of a wall time, moved by some days.
func (t TimeOfDay) on(c clock, wall time.Time, days int) time.Time {
	at := time.Date(wall.Year(), wall.Month(), wall.Day()+days, int(t)/60, int(t)%60, 0, 0, time.UTC)
	return c.first(at, at.Add(-repeat))
}

// after returns the first instant after t at which it is that time of day.
func (t TimeOfDay) after(c clock, at time.Time) time.Time {
	wall := c.span(at).wall(at)
	days := -2 // the clock may have been put back by a day
	for ; !t.on(c, wall, days).After(at); days++ {
	}
	return t.on(c, wall, days)
}

// until returns the last instant until t at which it was that time of day.
func (t TimeOfDay) until(c clock, at time.Time) time.Time {
	wall := c.span(at).wall(at)
	days := 2
	for ; t.on(c, wall, days).After(at); days-- {
	}
	return t.on(c, wall, days)
}

// open returns t when the window is open, or else when it opens next; and when it closes then, or the zero time when it
// does not.
func (w Window) open(c clock, t time.Time) (from, to time.Time) {
	if w.NotBefore == nil {
		return t, time.Time{}
	}
	closing := TimeOfDay(0) // without an end it is open until midnight
	if w.DoneBy != nil {
		closing = *w.DoneBy
	}
	if end := closing.after(c, w.NotBefore.until(c, t)); t.Before(end) {
		return t, end
	}
	from = w.NotBefore.after(c, t)
	return from, closing.after(c, from)
}
