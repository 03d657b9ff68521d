package report

import (
	"math"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

// instant makes moments out of seconds.
func instant(s float64) time.Time {
	return time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC).Add(time.Duration(s * float64(time.Second)))
}

func at(s float64) *time.Time { t := instant(s); return &t }

// event is one line of a run's history.
type event struct {
	kind workqueue.EventKind
	g    workqueue.Generation
	at   float64
}

func TestPhasesAddUp(t *testing.T) {
	t.Parallel()
	type phases struct{ waiting, working, paused, closing float64 }
	for name, c := range map[string]struct {
		events      []event
		first, last *time.Time
		now         float64
		held        bool
		want        phases
		second      float64 // seconds of the next generation
	}{
		"without a pause": {
			events: []event{{workqueue.EventStarted, 1, 0}, {workqueue.EventCompleted, 1, 10}},
			first:  at(1), last: at(9), now: 99, want: phases{1, 8, 0, 1},
		},
		"paused twice": {
			events: []event{{workqueue.EventPaused, 1, 2}, {workqueue.EventPaused, 1, 3}, {workqueue.EventResumed, 1, 4},
				{workqueue.EventPaused, 1, 6},
				{workqueue.EventApproved, 1, 7}, {workqueue.EventCompleted, 1, 10}},
			first: at(1), last: at(9), now: 99, want: phases{1, 5, 3, 1},
		},
		"paused before the first request and over the last answer": {
			events: []event{{workqueue.EventPaused, 1, -5}, {workqueue.EventResumed, 1, 2}, {workqueue.EventPaused, 1, 8},
				{workqueue.EventCompleted, 1, 10}},
			first: at(3), last: at(9), now: 99, want: phases{1, 5, 4, 0},
		},
		"in progress": {
			events: []event{{workqueue.EventStarted, 1, 0}}, first: at(4), last: at(6), now: 7, want: phases{4, 3, 0, 0},
		},
		"held now": {
			events: []event{{workqueue.EventPaused, 1, 5}}, first: at(4), now: 7, held: true, want: phases{4, 1, 2, 0},
		},
		"nothing sent": {events: nil, now: 3, want: phases{3, 0, 0, 0}},
		"cancelled": {
			events: []event{{workqueue.EventCancelled, 1, 6}}, first: at(2), last: at(3), now: 99, want: phases{2, 4, 0, 0},
		},
		"rerun before it was complete": {
			events: []event{{workqueue.EventRerun, 2, 5}, {workqueue.EventCompleted, 2, 9}}, first: at(1), last: at(6), now: 99,
			want: phases{1, 4, 0, 0},
		},
		"resumed after a cancel": {
			events: []event{{workqueue.EventCancelled, 1, 6}, {workqueue.EventResumed, 2, 9}, {workqueue.EventCompleted, 2, 20}},
			first:  at(2), last: at(3), now: 99, want: phases{2, 4, 0, 0}, second: 11,
		},
		"an answer that is older than the first request": {
			events: []event{{workqueue.EventCompleted, 1, 5}}, first: at(3), last: at(2), now: 99, want: phases{3, 0, 0, 2},
		},
	} {
		h := history{acts: []act{{generation: 1, span: span{from: instant(0)}}}}
		for _, e := range c.events {
			h.tell(e.kind, e.g, instant(e.at))
		}
		if !c.held {
			h.free(instant(c.now))
		}
		h.acts[0].first, h.acts[0].last = c.first, c.last
		got := h.report(0, instant(c.now))
		if c.second > 0 {
			testenv.Same(t, h.report(1, instant(c.now)).Seconds, c.second, "%s: the second generation", name)
		}
		p := phases{got.WaitingSeconds, got.WorkingSeconds, got.PausedSeconds, got.ClosingSeconds}
		testenv.Same(t, p, c.want, "%s", name)
		if sum := p.waiting + p.working + p.paused + p.closing; math.Abs(sum-got.Seconds) > 1e-9 {
			t.Errorf("%s: the phases are %v s of %v s", name, sum, got.Seconds)
		}
	}
}
