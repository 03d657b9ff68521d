package schedule

import (
	"crypto/sha256"
	"encoding/binary"
	"time"
)

// Planned returns when the run of a due time is to start: then or when the window opens, and so much later as the
// jitter of this due time is. The jitter does not lead out of the window.
func (s *Spec) Planned(due time.Time) time.Time {
	from, to := s.Window.open(s.clock, due)
	late := s.jitter(due)
	if left := to.Sub(from); !to.IsZero() && late >= left {
		late %= left
	}
	return from.Add(late).UTC()
}

// jitter is the same for a due time on every node and after every restart, and spread evenly over due times and names.
func (s *Spec) jitter(due time.Time) time.Duration {
	if s.Jitter <= 0 {
		return 0
	}
	sum := sha256.Sum256([]byte(s.Name + "/" + due.UTC().Format(time.RFC3339)))
	const grain = time.Millisecond // finer than that a database's clock does not have to be
	grains := uint64(time.Duration(s.Jitter) / grain)
	return time.Duration(binary.BigEndian.Uint64(sum[:8])%max(grains, 1)) * grain
}

// StartAt returns when a run that is planned for a time may start, seen from now: now, unless its window is shut.
func (s *Spec) StartAt(planned, now time.Time) time.Time {
	if planned.After(now) {
		return planned
	}
	from, _ := s.Window.open(s.clock, now)
	return from.UTC()
}

// StartBy returns when a run that is planned for a time is not to start any more.
func (s *Spec) StartBy(planned time.Time) (by time.Time, limited bool) {
	if s.StartDeadline <= 0 {
		return time.Time{}, false
	}
	return planned.Add(time.Duration(s.StartDeadline)), true
}

// DoneBy returns when a run that starts at a time should have ended.
func (s *Spec) DoneBy(start time.Time) (by time.Time, limited bool) {
	if s.Window.DoneBy == nil {
		return time.Time{}, false
	}
	return s.Window.DoneBy.after(s.clock, start).UTC(), true
}

// Firing is a due time, and what follows from it.
type Firing struct {
	Due    time.Time  `json:"due"`
	Local  string     `json:"local" doc:"the due time in the zone of the schedule"`
	Start  time.Time  `json:"start" doc:"with jitter and window"`
	DoneBy *time.Time `json:"done_by,omitempty"`
}

// Preview returns what the next n due times after another one are like.
func (s *Spec) Preview(after time.Time, n int) []Firing {
	out := make([]Firing, 0, n)
	for _, due := range s.NextN(after, n) {
		f := Firing{Due: due, Local: due.In(s.clock.zone).Format("Mon 2006-01-02 15:04 -07:00"), Start: s.Planned(due)}
		if by, limited := s.DoneBy(f.Start); limited {
			f.DoneBy = &by
		}
		out = append(out, f)
	}
	return out
}
