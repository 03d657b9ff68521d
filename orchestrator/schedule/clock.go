package schedule

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	_ "time/tzdata" // a machine may have no time zones, or others than its neighbor
)

// clock is the local time of a zone. A local time, called wall, is a time in UTC with the same fields.
type clock struct{ zone *time.Location }

func openZone(name string) (clock, error) {
	if name == "Local" || strings.EqualFold(name, "local") {
		return clock{}, fmt.Errorf("%q is another zone on each machine; name one, like Europe/Berlin or UTC", name)
	}
	zone, err := time.LoadLocation(name)
	if err != nil || name == "" {
		return clock{}, fmt.Errorf("no time zone %.60q; use an IANA name, like Europe/Berlin or UTC", name)
	}
	return clock{zone}, nil
}

// span is a period with a constant offset. Zero start or end: unlimited.
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

// instant returns when the clock shows a wall time, possibly outside the span.
func (s span) instant(wall time.Time) time.Time { return wall.Add(-s.offset) }

func (s span) ended(t time.Time) bool { return !s.end.IsZero() && !t.Before(s.end) }

// repeat exceeds the largest step back of any clock: the date line was moved by a day.
const repeat = 48 * time.Hour

// reached returns the latest wall time shown until t, which is not that at t after a step back.
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

// first returns when the clock first shows a wall time or a later one. It must not have done so before since.
func (c clock) first(wall, since time.Time) time.Time {
	begin := wall.Add(-repeat)
	if since.After(begin) {
		begin = since
	}
	for at := c.span(begin); ; at = c.span(at.end) {
		t := at.instant(wall)
		if !at.start.IsZero() && t.Before(at.start) {
			t = at.start // the clock skipped it
		}
		if !at.ended(t) {
			return t
		}
	}
}

type byWall struct {
	*expression
	clock
}

func (r byWall) next(after time.Time) time.Time {
	wall := r.after(r.reached(after))
	if wall.IsZero() {
		return time.Time{}
	}
	return r.first(wall, after)
}

type byElapsed struct {
	*expression
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

// Window says when runs may start, and when they are to have ended: times of day in the schedule's zone. It may go past
// midnight.
type Window struct {
	NotBefore *TimeOfDay `json:"not_before,omitempty" doc:"a due time outside waits until then"`
	DoneBy    *TimeOfDay `json:"done_by,omitempty" doc:"when its run is to have ended"`
}

// TimeOfDay is minutes since midnight on the clock: 22:00.
type TimeOfDay int

// String returns it as 22:00.
func (t TimeOfDay) String() string { return fmt.Sprintf("%02d:%02d", int(t)/60, int(t)%60) }

// MarshalText writes it as 22:00.
func (t TimeOfDay) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

var errNoTimeOfDay = errors.New("want a time of day like 06:00 or 22:30, in quotes")

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
	return errNoTimeOfDay
}

// on returns when the clock reaches the time of day on the day of a wall time, plus some days.
func (t TimeOfDay) on(c clock, wall time.Time, days int) time.Time {
	at := time.Date(wall.Year(), wall.Month(), wall.Day()+days, int(t)/60, int(t)%60, 0, 0, time.UTC)
	return c.first(at, at.Add(-repeat))
}

func (t TimeOfDay) after(c clock, at time.Time) time.Time {
	wall := c.span(at).wall(at)
	days := -2 // the clock may have been set back by a day
	for ; !t.on(c, wall, days).After(at); days++ {
	}
	return t.on(c, wall, days)
}

func (t TimeOfDay) until(c clock, at time.Time) time.Time {
	wall := c.span(at).wall(at)
	days := 2
	for ; t.on(c, wall, days).After(at); days-- {
	}
	return t.on(c, wall, days)
}

// open returns t if the window is open, or else when it opens next; and when it closes, zero for never.
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

// Planned returns the planned start of a due time: when the window is open, plus the due time's jitter, which stays
// within the window.
func (s *Spec) Planned(due time.Time) time.Time {
	from, to := s.Window.open(s.clock, due)
	late := s.jitter(due)
	if left := to.Sub(from); !to.IsZero() && late >= left {
		late %= left
	}
	return from.Add(late).UTC()
}

// jitter is the same for a due time on every node and after every restart, and evenly distributed.
func (s *Spec) jitter(due time.Time) time.Duration {
	if s.Jitter <= 0 {
		return 0
	}
	sum := sha256.Sum256([]byte(s.Name + "/" + due.UTC().Format(time.RFC3339)))
	const grain = time.Millisecond // a database's clock may be no finer
	grains := uint64(time.Duration(s.Jitter) / grain)
	return time.Duration(binary.BigEndian.Uint64(sum[:8])%max(grains, 1)) * grain
}

// StartAt returns when a planned run may start, as of now: now, unless its window is closed.
func (s *Spec) StartAt(planned, now time.Time) time.Time {
	if planned.After(now) {
		return planned
	}
	from, _ := s.Window.open(s.clock, now)
	return from.UTC()
}

// StartBy returns the deadline of a planned start; nil: none.
func (s *Spec) StartBy(planned time.Time) *time.Time {
	if s.StartDeadline <= 0 {
		return nil
	}
	return new(planned.Add(time.Duration(s.StartDeadline)))
}

// DoneBy returns when a run that starts at a time should have ended; nil: whenever.
func (s *Spec) DoneBy(start time.Time) *time.Time {
	if s.Window.DoneBy == nil {
		return nil
	}
	return new(s.Window.DoneBy.after(s.clock, start).UTC())
}

// Firing is a due time and what follows from it.
type Firing struct {
	Due    time.Time  `json:"due"`
	Local  string     `json:"local" doc:"the due time in the zone of the schedule"`
	Start  time.Time  `json:"start" doc:"with jitter and window"`
	DoneBy *time.Time `json:"done_by,omitempty"`
}

// Preview returns the next n firings.
func (s *Spec) Preview(after time.Time, n int) []Firing {
	out := make([]Firing, 0, n)
	for _, due := range s.NextN(after, n) {
		start := s.Planned(due)
		local := due.In(s.clock.zone).Format("Mon 2006-01-02 15:04 -07:00")
		out = append(out, Firing{Due: due, Local: local, Start: start, DoneBy: s.DoneBy(start)})
	}
	return out
}
