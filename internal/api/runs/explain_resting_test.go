package runs

import (
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/health"
)

// A service that wants to be left alone is why nothing is claimed, and until when.
func TestExplainAServiceThatIsLeftAlone(t *testing.T) {
	t.Parallel()
	now := time.Now()
	until := now.Add(time.Minute)
	s := &Routes{config: Config{RestsUntil: func(key string) time.Time {
		return map[string]time.Time{"http:a": until, "http:b": now.Add(-time.Second)}[key]
	}}}
	for _, alone := range []bool{true, false} {
		groups := []health.MissingGroup{
			{Endpoint: "http:a", Reason: health.ReasonNext}, {Endpoint: "http:b", Reason: health.ReasonNext},
			{Endpoint: "http:a", Reason: health.ReasonWorking},
		}
		s.tellResting(groups, alone, now)
		want := "wait (Retry-After) until " + until.UTC().Format("2006-01-02 15:04:05 UTC")
		if g := groups[0]; !strings.Contains(g.Why, want) ||
			(g.Reason == health.ReasonThrottled && g.When.Equal(until)) != alone {
			t.Errorf("alone %v: %+v", alone, g)
		}
		testenv.Same(t, groups[1].Why+groups[2].Why, "", "alone %v: %+v", alone, groups)
	}
}
