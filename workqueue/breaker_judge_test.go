package workqueue

import (
	"testing"
	"time"

	"github.com/google/uuid"
)

// past makes slices that ended one after the other; it is told oldest first and read newest first.
type past struct {
	slices []endedSlice
}

func (s *past) end(parent SliceID, items int, how endedHow) SliceID {
	id := SliceID(uuid.New())
	ended := endedSlice{id: id, parent: parent, items: items, how: how, code: "crash", message: "m"}
	s.slices = append([]endedSlice{ended}, s.slices...)
	return id
}

func (s *past) many(n, items int, how endedHow) {
	for range n {
		s.end(SliceID{}, items, how)
	}
}

func TestJudge(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		tell    func(*past)
		trusted bool
		down    bool
	}{
		"nothing":                 {tell: func(*past) {}},
		"four chunks failed":      {tell: func(s *past) { s.many(4, 500, endedFailed) }},
		"five chunks failed":      {tell: func(s *past) { s.many(5, 500, endedFailed) }, down: true},
		"five asked to try again": {tell: func(s *past) { s.many(5, 500, endedRefused) }, down: true},
		"long after many successes": {tell: func(s *past) {
			s.many(50, 500, endedWell)
			s.many(8, 500, endedFailed)
		}, down: true},
		"three successes of ten": {tell: func(s *past) { s.many(3, 1, endedWell); s.many(7, 500, endedFailed) }},
		"five of six":            {tell: func(s *past) { s.many(1, 1, endedWell); s.many(5, 500, endedFailed) }, down: true},
		"trusted, large":         {tell: func(s *past) { s.many(10, 500, endedFailed) }, trusted: true},
		"trusted, single":        {tell: func(s *past) { s.many(5, 1, endedFailed) }, trusted: true, down: true},
		"trusted, asked to try again": {tell: func(s *past) { s.many(5, 500, endedRefused) }, trusted: true,
			down: true},
		"trusted, a success is one": {tell: func(s *past) { s.many(5, 1, endedFailed); s.many(5, 500, endedWell) },
			trusted: true},
		"known culprits": {tell: func(s *past) {
			s.many(10, 1, endedFailed)
			for i := range s.slices {
				s.slices[i].proven = true
			}
		}},
		"one item, cut out and tried again": {tell: func(s *past) {
			at := SliceID{}
			for items := 512; items > 1; items /= 2 {
				at = s.end(at, items, endedFailed)
			}
			for range 5 {
				at = s.end(at, 1, endedFailed)
			}
		}},
		"all pieces of one chunk": {tell: func(s *past) {
			level := []SliceID{s.end(SliceID{}, 64, endedFailed)}
			for items := 32; len(level) < 8; items /= 2 {
				var next []SliceID
				for _, parent := range level {
					next = append(next, s.end(parent, items, endedFailed), s.end(parent, items, endedFailed))
				}
				level = next
			}
		}, down: true},
		"one item, and the other halves work": {tell: func(s *past) {
			at := SliceID{}
			for items := 512; items > 1; items /= 2 {
				at = s.end(at, items, endedFailed)
				s.end(at, items, endedWell)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s past
			tc.tell(&s)
			if o := judge(s.slices, tc.trusted); o.down != tc.down {
				t.Errorf("down %v, %d of %d failed; want %v", o.down, o.failed, o.of, tc.down)
			}
		})
	}
}

func TestProbePause(t *testing.T) {
	t.Parallel()
	for failed, want := range map[int]time.Duration{0: time.Second, 1: time.Second, 2: 2 * time.Second,
		5: 16 * time.Second, 6: 30 * time.Second, 1000: 30 * time.Second} {
		if got := probePause(failed); got != want {
			t.Errorf("after %d failed probes: %s; want %s", failed, got, want)
		}
	}
}

func TestSpared(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		blame  blame
		origin Cause
		probes int
		want   bool
	}{
		"a chunk":                        {blame{}, CauseCut, 0, true},
		"a known culprit":                {blame{proven: true, lone: 1}, CauseFailure, 0, false},
		"the first probe of an item":     {blame{}, CauseProbe, 100, true},
		"an early probe":                 {blame{lone: 1}, CauseProbe, patientProbes - 1, true},
		"a late probe of a lone failure": {blame{lone: 1}, CauseProbe, patientProbes, false},
		"while there is other work":      {blame{lone: 1, others: true}, CauseProbe, 100, true},
		"not a probe":                    {blame{lone: 1}, CauseFailure, patientProbes, true},
	} {
		if got := tc.blame.spared(tc.origin, tc.probes); got != tc.want {
			t.Errorf("%s: spared %v; want %v", name, got, tc.want)
		}
	}
}
