package forecast_test

import (
	"math"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/workqueue/forecast"
)

// A rehearsal knows of outages and slow hours, says what bounds each step, and draws how far it is.
func TestRehearsal(t *testing.T) {
	t.Parallel()
	network := func() *forecast.Network {
		n := one(step("a", 0, 8000, forecast.Assume(1, 0, 10, 0)), step("b", 1, 8000, forecast.Assume(0.4, 0, 10, 0), 0))
		for i := range n.Steps {
			n.Steps[i].Cost.Spread = 0.01
		}
		return n
	}
	for name, c := range map[string]struct {
		speeds []forecast.Speed
		want   float64
	}{
		"alone":         {nil, 101},
		"an outage":     {[]forecast.Speed{{From: 20, To: 70, Share: 0}}, 151},
		"half speed":    {[]forecast.Speed{{From: 20, To: 70, Share: 0.5}}, 126},
		"after the end": {[]forecast.Speed{{From: 500, To: 900, Share: 0}}, 101},
		"both":          {[]forecast.Speed{{From: 20, To: 70, Share: 0.5}, {From: 0, To: 20, Share: 0}}, 146},
	} {
		n := network()
		n.Endpoints[0].Speeds = c.speeds
		r, err := n.Rehearse(t.Context(), 11)
		if err != nil || math.Abs(r.Ends.P50-c.want) > 0.03*c.want {
			t.Fatalf("%s: %+v, %v; want %v", name, r, err, c.want)
		}
		a, b := r.Steps[0], r.Steps[1]
		if a.Begins > 20 || a.Ends.P50 > b.Ends.P50 || len(a.Progress) != 11 || a.Progress[0] != 0 || a.Progress[10] != 1 ||
			!strings.Contains(a.BoundBy, "8 requests in flight") || b.BoundBy != "what it needs" || b.Idle < 0.5 || a.Idle > 0.6 {
			t.Errorf("%s: %+v", name, r)
		}
	}
	n := network()
	n.Steps[0].Rate, n.Endpoints[0].Speeds = 40, []forecast.Speed{{From: 0, To: 100, Share: 0.5}}
	if r, err := n.Rehearse(t.Context(), 2); err != nil || math.Abs(r.Ends.P50-201) > 6 {
		t.Errorf("a rate of half the places: %+v, %v", r, err)
	}
	n.Steps[1].Cost = forecast.Cost{}
	if _, err := n.Rehearse(t.Context(), 2); err == nil || !strings.Contains(err.Error(), "step b") {
		t.Errorf("%v", err)
	}
}
