package admin

import (
	"testing"
	"time"

	"github.com/tranchehq/tranche/orchestrator/client"
)

// TestWhyOfFires has fires that have no reason of their own, because nothing is wrong with them.
func TestWhyOfFires(t *testing.T) {
	t.Parallel()
	due := time.Date(2026, 5, 5, 14, 0, 0, 0, time.Local) //nolint:gosmopolitan // as people read it
	at := due.Add(8 * time.Hour)
	for want, fire := range map[string]client.Fire{
		"":                      {State: "due", StartAt: due},
		"asked by ann":          {State: "due", StartAt: due, AskedBy: "ann"},
		"the plan is not there": {State: "due", StartAt: due, Reason: "the plan is not there"},
		"starts 2026-05-05 22:00:00 UTC (window or jitter)":      {State: "due", StartAt: at},
		"its window is shut; not before 2026-05-05 22:00:00 UTC": {State: "due", StartAt: at, Reason: "its window is shut"},
		"being loaded since 2026-05-05 22:00:00 UTC": {
			State: "starting", StartAt: due, BeganAt: &at, Attempts: 1},
		"being loaded since 2026-05-05 22:00:00 UTC, attempt 3": {
			State: "starting", StartAt: due, BeganAt: &at, Attempts: 3},
		"late: paused": {State: "started", StartAt: at, BeganAt: &at, Late: "paused"},
	} {
		fire.DueAt = due
		if got := whyFire(&fire, due.Add(time.Hour)); got != want {
			t.Errorf("%s: %q; want %q", fire.State, got, want)
		}
	}
}
