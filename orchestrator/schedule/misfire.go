package schedule

import "time"

// OnTime is how long after its planned start a due time still counts as met. A new leader, and a slow round of it, take
// less.
const OnTime = time.Minute

// MaxMissed is how many due times that are not fired are returned one by one.
const MaxMissed = 100

// horizon is how far back due times are looked for.
const horizon = 20 * 366 * 24 * time.Hour

// Passed is what becomes of due times that have passed.
type Passed struct {
	Fire   []time.Time // to be fired, the oldest first
	Missed []time.Time // not to be fired, the oldest first; no more than the newest MaxMissed
	More   bool        // still older ones were missed too
	Next   time.Time   // the first due time after them; zero: there is none
}

// Due divides the due times after last until now. Those whose planned start is long past were missed: the misfire
// policy says which of them are fired nevertheless.
func (s *Spec) Due(last, now time.Time) Passed {
	var out Passed
	out.Next, _ = s.Next(now)
	dues, more := s.newest(last, now, MaxMissed+1)
	late := len(dues)
	for late > 0 && now.Sub(s.Planned(dues[late-1])) <= OnTime {
		late--
	}
	fire := late // the first that is fired
	switch {
	case s.Misfire == MisfireAll:
		fire = max(0, late-s.MisfireLimit)
	case s.Misfire == MisfireOnce && late == len(dues):
		fire = max(0, late-1)
	}
	out.Fire = dues[fire:]
	missed := dues[:fire]
	out.More = more && fire > 0 || len(missed) > MaxMissed
	out.Missed = missed[max(0, len(missed)-MaxMissed):]
	return out
}

// newest returns the last n due times after last until now, and whether there are more. It looks back in steps that
// double, since rules only go forward, and a minute's schedule may have slept for a year.
func (s *Spec) newest(last, now time.Time, n int) (dues []time.Time, more bool) {
	if oldest := now.Add(-horizon); last.Before(oldest) {
		last = oldest
	}
	for back := time.Duration(s.Every) + time.Hour; ; back *= 2 {
		from := now.Add(-back)
		whole := !from.After(last)
		if whole {
			from = last
		}
		dues = s.between(from, now)
		if len(dues) > n {
			return dues[len(dues)-n:], true
		}
		if whole {
			return dues, false
		}
	}
}

// between returns the due times after from until to.
func (s *Spec) between(from, to time.Time) (dues []time.Time) {
	for due, ok := s.Next(from); ok && !due.After(to); due, ok = s.Next(due) {
		dues = append(dues, due)
	}
	return dues
}
