package pace

import (
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

// past makes slices that ended one at a time; it is told oldest first and read newest first.
type past struct {
	slices []endedSlice
}

func (s *past) end(parent workqueue.SliceID, items int, how endedHow) workqueue.SliceID {
	id := workqueue.SliceID(uuid.New())
	ended := endedSlice{id: id, parent: parent, items: items, how: how, code: "crash"}
	s.slices = append([]endedSlice{ended}, s.slices...)
	return id
}

func (s *past) many(n, items int, how endedHow) {
	for range n {
		s.end(workqueue.SliceID{}, items, how)
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
		"four chunks failed":      {tell: func(s *past) { s.many(4, 500, EndedFailed) }},
		"five chunks failed":      {tell: func(s *past) { s.many(5, 500, EndedFailed) }, down: true},
		"five asked to try again": {tell: func(s *past) { s.many(5, 500, EndedRefused) }, down: true},
		"long after many successes": {tell: func(s *past) {
			s.many(50, 500, endedWell)
			s.many(8, 500, EndedFailed)
		}, down: true},
		"three successes of ten": {tell: func(s *past) { s.many(3, 1, endedWell); s.many(7, 500, EndedFailed) }},
		"five of six":            {tell: func(s *past) { s.many(1, 1, endedWell); s.many(5, 500, EndedFailed) }, down: true},
		"trusted, large":         {tell: func(s *past) { s.many(10, 500, EndedFailed) }, trusted: true},
		"trusted, single":        {tell: func(s *past) { s.many(5, 1, EndedFailed) }, trusted: true, down: true},
		"trusted, asked to try again": {tell: func(s *past) { s.many(5, 500, EndedRefused) }, trusted: true,
			down: true},
		"trusted, a success is one": {tell: func(s *past) { s.many(5, 1, EndedFailed); s.many(5, 500, endedWell) },
			trusted: true},
		"known culprits": {tell: func(s *past) {
			s.many(10, 1, EndedFailed)
			for i := range s.slices {
				s.slices[i].itemsOwn = true
			}
		}},
		"one item, cut out and retried": {tell: func(s *past) {
			at := workqueue.SliceID{}
			for items := 512; items > 1; items /= 2 {
				at = s.end(at, items, EndedFailed)
			}
			for range 5 {
				at = s.end(at, 1, EndedFailed)
			}
		}},
		"all pieces of one chunk": {tell: func(s *past) {
			level := []workqueue.SliceID{s.end(workqueue.SliceID{}, 64, EndedFailed)}
			for items := 32; len(level) < 8; items /= 2 {
				var next []workqueue.SliceID
				for _, parent := range level {
					next = append(next, s.end(parent, items, EndedFailed), s.end(parent, items, EndedFailed))
				}
				level = next
			}
		}, down: true},
		"one item, and the other halves work": {tell: func(s *past) {
			at := workqueue.SliceID{}
			for items := 512; items > 1; items /= 2 {
				at = s.end(at, items, EndedFailed)
				s.end(at, items, endedWell)
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var s past
			tc.tell(&s)
			o := judge(s.slices, tc.trusted)
			testenv.Same(t, o.down, tc.down, "down, %d of %d failed", o.failed, o.of)
		})
	}
}

func TestProbePause(t *testing.T) {
	t.Parallel()
	for failed, want := range map[int]time.Duration{0: time.Second, 1: time.Second, 2: 2 * time.Second,
		5: 16 * time.Second, 6: 30 * time.Second, 1000: 30 * time.Second} {
		testenv.Same(t, ProbePause(failed), want, "after %d failed probes", failed)
	}
}

func TestSpared(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		blame  Blame
		origin workqueue.Cause
		code   string
		probes int
		want   bool
	}{
		"a chunk":                        {Blame{}, workqueue.CauseReady, "crash", 0, true},
		"a known culprit":                {Blame{proven: true, Lone: 1}, workqueue.CauseFailure, "crash", 0, false},
		"singled out, and answered":      {Blame{singled: true}, workqueue.CauseRetry, "crash", 0, false},
		"singled out, and not answered":  {Blame{singled: true}, workqueue.CauseRetry, "unavailable", 0, true},
		"the first probe of an item":     {Blame{}, workqueue.CauseProbe, "crash", 100, true},
		"an early probe":                 {Blame{Lone: 1}, workqueue.CauseProbe, "crash", PatientProbes - 1, true},
		"a late probe of a lone failure": {Blame{Lone: 1}, workqueue.CauseProbe, "crash", PatientProbes, false},
		"while there is other work":      {Blame{Lone: 1, others: true}, workqueue.CauseProbe, "crash", 100, true},
		"not a probe":                    {Blame{Lone: 1}, workqueue.CauseFailure, "crash", PatientProbes, true},
	} {
		testenv.Same(t, tc.blame.spared(tc.origin, tc.code, tc.probes), tc.want, "%s: spared", name)
	}
}
