package report

import (
	"fmt"
	"math"
	"strings"
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

func TestPhasesAddUp(t *testing.T) {
	t.Parallel()
	type phases struct{ waiting, working, paused, closing float64 }
	for name, c := range map[string]struct {
		events      string // their kinds, generations and seconds; with a + it is held after that
		first, last *time.Time
		now         float64
		held        bool
		want        phases
		second      float64 // seconds of the next generation without its pauses
	}{
		"without a pause": {events: "started 1 0, completed 1 10", first: at(1), last: at(9), now: 99,
			want: phases{1, 8, 0, 1}},
		"paused twice": {events: "paused+ 1 2, paused+ 1 3, resumed 1 4, paused+ 1 6, approved 1 7, completed 1 10",
			first: at(1), last: at(9), now: 99, want: phases{1, 5, 3, 1}},
		"paused before the first request and over the last answer": {events: "paused+ 1 -5, resumed 1 2, paused+ 1 8, " +
			"completed 1 10", first: at(3), last: at(9), now: 99, want: phases{1, 5, 4, 0}},
		"in progress":  {events: "started 1 0", first: at(4), last: at(6), now: 7, want: phases{4, 3, 0, 0}},
		"held now":     {events: "paused+ 1 5", first: at(4), now: 7, held: true, want: phases{4, 1, 2, 0}},
		"nothing sent": {now: 3, want: phases{3, 0, 0, 0}},
		"cancelled":    {events: "cancelled 1 6", first: at(2), last: at(3), now: 99, want: phases{2, 4, 0, 0}},
		"rerun before it was complete": {events: "rerun 2 5, completed 2 9", first: at(1), last: at(6), now: 99,
			want: phases{1, 4, 0, 0}},
		"rerun with a sample of what its canary held": {events: "paused+ 1 2, rerun 2 5, completed 2 9",
			first: at(1), last: at(2), now: 99, want: phases{1, 1, 3, 0}, second: 4},
		"resumed after a cancel": {events: "cancelled 1 6, resumed 2 9, completed 2 20",
			first: at(2), last: at(3), now: 99, want: phases{2, 4, 0, 0}, second: 11},
		"approved at a gate, and resumed, while held": {events: "paused+ 1 2, approved+ 1 4, cancelled 1 6, resumed+ 2 9, " +
			"approved 2 12, completed 2 20", first: at(1), last: at(2), now: 99, want: phases{1, 1, 4, 0}, second: 8},
		"an answer that is older than the first request": {events: "completed 1 5", first: at(3), last: at(2), now: 99,
			want: phases{3, 0, 0, 2}},
	} {
		h := history{acts: []act{{generation: 1, span: span{from: instant(0)}}}}
		for e := range strings.SplitSeq(c.events, ", ") {
			kind, g, s := "", workqueue.Generation(0), 0.0
			_, _ = fmt.Sscan(e, &kind, &g, &s)
			kind, held := strings.CutSuffix(kind, "+")
			h.tell(workqueue.EventKind(kind), g, instant(s), held)
		}
		if !c.held {
			h.hold(instant(c.now), false)
		}
		h.acts[0].first, h.acts[0].last = c.first, c.last
		got := h.report(0, instant(c.now))
		if c.second > 0 {
			next := h.report(1, instant(c.now))
			testenv.Same(t, next.Seconds-next.PausedSeconds, c.second, "%s: the second generation", name)
		}
		p := phases{got.WaitingSeconds, got.WorkingSeconds, got.PausedSeconds, got.ClosingSeconds}
		testenv.Same(t, p, c.want, "%s", name)
		if sum := p.waiting + p.working + p.paused + p.closing; math.Abs(sum-got.Seconds) > 1e-9 {
			t.Errorf("%s: the phases are %v s of %v s", name, sum, got.Seconds)
		}
	}
}
