package schedule

import (
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // a machine may have no time zones, or others than its neighbour
)

// clock is what people of a zone see on the wall. A time on it, called wall, is kept as a time in UTC with the same
// fields.
type clock struct{ zone *time.Location }

// openZone returns the clock of an IANA zone.
func openZone(name string) (clock, error) {
	if name == "Local" || strings.EqualFold(name, "local") {
		return clock{}, fmt.Errorf("%q is another zone on each machine; name one, like Europe/Berlin or UTC", name)
	}
	zone, err := time.LoadLocation(name)
	if err != nil || name == "" {
		return clock{}, fmt.Errorf("there is no time zone %.60q; want a name of IANA, like Europe/Berlin or UTC", name)
	}
	return clock{zone}, nil
}

// span is a time in which the clock goes evenly. A zero start or end means that there is none.
type span struct {
	start, end time.Time
	offset     time.Duration // from UTC to the clock
}

func (c clock) span(t time.Time) span {
	local := t.In(c.zone)
	start, end := local.ZoneBounds()
	_, offset := local.Zone()
	return span{start.UTC(), end.UTC(), time.Duration(offset) * time.Second}
}

func (s span) wall(t time.Time) time.Time { return t.UTC().Add(s.offset) }

// instant returns when the clock shows a wall time, which may be before the span or after it.
func (s span) instant(wall time.Time) time.Time { return wall.Add(-s.offset) }

func (s span) ended(t time.Time) bool { return !s.end.IsZero() && !t.Before(s.end) }

// repeat is more than any clock was ever put back: the date line was moved by a day.
const repeat = 48 * time.Hour

// reached returns the latest time that the clock has shown until t, which is not the one at t after it was put back.
func (c clock) reached(t time.Time) time.Time {
	at := c.span(t)
	latest := at.wall(t)
	for !at.start.IsZero() && t.Sub(at.start) < repeat {
		last := at.start.Add(-1)
		at = c.span(last)
		if wall := at.wall(last); wall.After(latest) {
			latest = wall
		}
	}
	return latest
}

// first returns when the clock shows a wall time or a later one for the first time. It has not done so before since.
func (c clock) first(wall, since time.Time) time.Time {
	begin := wall.Add(-repeat)
	if since.After(begin) {
		begin = since
	}
	for at := c.span(begin); ; at = c.span(at.end) {
		t := at.instant(wall)
		if !at.start.IsZero() && t.Before(at.start) {
			t = at.start // it was left out
		}
		if !at.ended(t) {
			return t
		}
	}
}

// byWall is the rule of expressions with fixed hours.
type byWall struct {
	expression
	clock
}

func (r byWall) next(after time.Time) time.Time {
	wall := r.after(r.reached(after))
	if wall.IsZero() {
		return time.Time{}
	}
	return r.first(wall, after)
}

// byElapsed is the rule of expressions for all hours.
type byElapsed struct {
	expression
	clock
}

func (r byElapsed) next(after time.Time) time.Time {
	at := r.span(after)
	for from := at.wall(after); ; from = at.wall(at.start).Add(-1) {
		wall := r.after(from)
		if wall.IsZero() {
			return time.Time{}
		}
		if t := at.instant(wall); !at.ended(t) {
			return t
		}
		at = r.span(at.end)
	}
}
