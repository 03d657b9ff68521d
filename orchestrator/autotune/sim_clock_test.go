package autotune

import "math"

// event is something that happens at a time.
type event struct {
	at   float64
	then func()
}

// events is a heap of what is to happen, the next first.
type events []event

func (h *events) push(at float64, then func()) {
	q := append(*h, event{at, then})
	for i := len(q) - 1; i > 0; {
		up := (i - 1) / 2
		if q[up].at <= q[i].at {
			break
		}
		q[up], q[i] = q[i], q[up]
		i = up
	}
	*h = q
}

func (h *events) pop() event {
	q := *h
	first, last := q[0], len(q)-1
	q[0], q[last] = q[last], event{}
	q = q[:last]
	for i := 0; ; {
		next := 2*i + 1
		if next >= last {
			break
		}
		if next+1 < last && q[next+1].at < q[next].at {
			next++
		}
		if q[i].at <= q[next].at {
			break
		}
		q[i], q[next] = q[next], q[i]
		i = next
	}
	*h = q
	return first
}

// sharedWork is requests that slow each other down while they are at work. They have a time of their own, which runs
// slower the more there are.
type sharedWork struct {
	virtual float64
	asOf    float64 // the real time of virtual
	stays   []stay
	armed   int // how often the next end was looked for: only the latest look counts
}

// stay is a request at work, until a virtual time.
type stay struct {
	end  float64
	done func()
}

// share lets a request take what it takes alone, and longer beside others.
func (s *simulation) share(alone float64, done func()) {
	s.advance()
	s.shared.stays = append(s.shared.stays, stay{s.shared.virtual + alone, done})
	s.arm()
}

// advance brings the virtual time up to now.
func (s *simulation) advance() {
	w := &s.shared
	if n := len(w.stays); n > 0 {
		w.virtual += (s.now - w.asOf) / s.service.slowdown(n)
	}
	w.asOf = s.now
}

// arm waits for the next end.
func (s *simulation) arm() {
	w := &s.shared
	w.armed++
	if len(w.stays) == 0 {
		return
	}
	next, armed := math.Inf(1), w.armed
	for _, x := range w.stays {
		next = min(next, x.end-w.virtual)
	}
	s.after(max(0, next)*s.service.slowdown(len(w.stays)), func() {
		if armed == w.armed {
			s.finish()
		}
	})
}

// finish ends what is over.
func (s *simulation) finish() {
	const rounding = 1e-9
	s.advance()
	w := &s.shared
	var over []stay
	left := w.stays[:0]
	for _, x := range w.stays {
		if x.end <= w.virtual+rounding {
			over = append(over, x)
		} else {
			left = append(left, x)
		}
	}
	w.stays = left
	s.arm()
	for _, x := range over {
		x.done()
	}
}
