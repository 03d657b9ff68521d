package forecast_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/workqueue/forecast"
)

// want fails the test unless a run ends in about so many seconds.
func want(t *testing.T, what string, n *forecast.Network, seconds float64) {
	t.Helper()
	if got := ends(t, n)[1]; math.Abs(got-seconds) > 0.06*seconds {
		t.Errorf("%s: it ends in %.1f s; want %.1f", what, got, seconds)
	}
}

// Steps that feed each other continue concurrently, however many they are.
func TestAChainIsAsFastAsItsSteps(t *testing.T) {
	t.Parallel()
	for _, length := range []int{2, 5, 10, 30} {
		n := &forecast.Network{Runs: []forecast.Run{{ID: "night"}}}
		for i := range length {
			var needs []int
			if i > 0 {
				needs = []int{i - 1}
			}
			n.Endpoints = append(n.Endpoints, forecast.Endpoint{Name: fmt.Sprint("e", i)})
			n.Steps = append(n.Steps, step(fmt.Sprint("s", i), i, 80_000, cost(1, 8), needs...))
			n.Steps[i].Cost.Spread = 0.01 // of many unsure ones some are slow
		}
		want(t, fmt.Sprint(length, " steps"), n, 1000+float64(length))
	}
}

// Steps of a chain that share places end when those have done all their work, whichever of them is more urgent.
func TestAChainSharesAnEndpoint(t *testing.T) {
	t.Parallel()
	for _, slow := range []float64{0.5, 1, 2} {
		n := one(step("a", 0, 8000, cost(1, 8)), step("b", 0, 8000, cost(slow, 8), 0))
		n.Endpoints[0].Budget = 8
		want(t, fmt.Sprint("the second step takes ", slow), n, 100+100*slow)
	}
}

// Items that wait to be retried are requested again.
func TestRetriesTakeTheirTime(t *testing.T) {
	t.Parallel()
	a := step("a", 0, 10_000, cost(1, 8))
	a.Settled, a.Ready, a.Retrying, a.RetryDue = 5000, 0, 5000, 1
	want(t, "half of the items", one(a), 63.5)
	a.RetryDue, a.RetryMean = 600, 300
	want(t, "half of the items, later and later", one(a), 601)
	a.RetryMean = 600
	want(t, "half of the items, later all together", one(a), 663)
	b := step("b", 1, 10_000, cost(1, 8), 0)
	b.Settled, b.Retrying, b.RetryDue = 5000, 5000, 1
	done := step("a", 0, 10_000, cost(1, 8))
	done.Settled, done.Ready = done.Items, 0
	want(t, "those of a later step", one(done, b), 63.5)
}

// Where all has failed so far the steps after have little to do; whatever was measured, there is a number or a reason.
func TestAllHaveFailed(t *testing.T) {
	t.Parallel()
	a := step("a", 0, 8000, cost(1, 8))
	a.Settled, a.Ready, a.Failed = 4000, 4000, 1
	n := one(a, step("b", 1, 8000, cost(1, 8), 0), step("other", 1, 800, cost(1, 8)))
	n.Runs = append(n.Runs, forecast.Run{ID: "day"})
	n.Steps[2].Run = 1
	want(t, "all have failed", n, 52)
	for _, slot := range []float64{math.NaN(), math.Inf(1), 1e300, 1e-300} {
		n := one(a)
		n.Steps[0].Cost.Slot = slot
		if f := outcomes(t, n)[0]; (f.P50 == nil) == (f.WhyNot == "") {
			t.Errorf("an item costs %v s: %+v", slot, f)
		}
	}
}

// What is out of a canary reaches the next step, and what will never reach it does not hold the rest back.
func TestACanaryThatIsOutEnds(t *testing.T) {
	t.Parallel()
	for _, lost := range []float64{0, 40} {
		a := step("a", 0, 8000, cost(1, 8))
		a.Ready, a.Out, a.Held = 0, 80-lost, 7920
		a.Settled = lost
		n := one(a, step("b", 1, 8000, cost(1, 8), 0))
		n.Runs[0].Canary = true
		want(t, fmt.Sprint(lost, " of the canary lost"), n, 103)
	}
}

// A run that is held or loaded takes nothing from those that continue, but they take from it when it continues.
func TestRunsThatDoNotGoOnDoNotCompete(t *testing.T) {
	t.Parallel()
	network := func() *forecast.Network {
		n := one(step("a", 0, 8000, cost(1, 8)), step("a", 0, 8000, cost(1, 8)))
		n.Endpoints[0].Budget, n.Steps[1].Run = 8, 1
		n.Runs = append(n.Runs, forecast.Run{ID: "held", Priority: 5, Person: "an operator to resume it"})
		return n
	}
	want(t, "beside a held run", network(), 101)
	n := network()
	n.Runs[1].Priority = 0
	if f := outcomes(t, n)[1]; f.Then == nil || math.Abs(f.Then.P50-201) > 10 || f.P50 != nil {
		t.Errorf("the held run takes %+v; want 201 s", f.Then)
	}
	n.Runs[1] = forecast.Run{ID: "loads", Priority: 5, Idle: true}
	want(t, "beside one that is loaded", n, 101)
	if f := outcomes(t, n)[1]; f.WhyNot != "it does not continue now" {
		t.Errorf("%+v", f)
	}
	n.Runs[1].Idle = false
	want(t, "beside one that continues", n, 201)
}

// Two lanes have two requests in flight, whatever more there may be; and of few items one lane has clearly the most.
func TestFewLanesAreSlow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ lanes, items, want float64 }{{1, 8000, 7900}, {2, 8000, 3984}, {4, 500, 111}} {
		var requests []forecast.Request
		for i := range 100 {
			ended := -math.Floor(float64(i) / c.lanes)
			requests = append(requests, forecast.Request{Items: 1, First: true, Began: ended - 1, Ended: ended, Took: 1})
		}
		s := step("a", 0, c.items, forecast.Measure(requests, false))
		s.Settled, s.Ready, s.Out, s.Held = 100, 0, c.lanes, c.items-100-c.lanes
		n := one(s)
		n.Steps[0].InFlight, n.Endpoints[0].Level = 8, c.lanes
		n.Fit()
		want(t, fmt.Sprint(c.lanes, " lanes"), n, c.want)
	}
	s := step("a", 0, 8000, cost(1, 8))
	s.Settled, s.Ready, s.Retrying, s.RetryDue = 4000, 0, 4000, 1
	n := one(s)
	n.Steps[0].Cost.Level = 1
	n.Fit()
	want(t, "items that waited to be retried", n, 51)
}

// Many runs with many steps take a bounded time, and none when no one waits any more.
func TestForecastsAreBounded(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(1, 2))
	n := &forecast.Network{Endpoints: make([]forecast.Endpoint, 8)}
	for e := range n.Endpoints {
		n.Endpoints[e] = forecast.Endpoint{Name: fmt.Sprint("e", e), Budget: 16}
	}
	for run := range 66 {
		n.Runs = append(n.Runs, forecast.Run{ID: fmt.Sprint(run), Priority: r.IntN(3)})
		for i := range 10 {
			var needs []int
			if i > 0 {
				needs = []int{len(n.Steps) - 1}
			}
			s := step(fmt.Sprint("s", i), r.IntN(8), 1000+float64(r.IntN(1e6)), cost(0.1+r.Float64(), 8), needs...)
			s.Run = run
			n.Steps = append(n.Steps, s)
		}
	}
	for i, f := range outcomes(t, n) {
		if f.P50 == nil {
			t.Errorf("run %d: %+v", i, f)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := n.All(ctx, now, 1); !errors.Is(err, context.Canceled) {
		t.Errorf("it says %v", err)
	}
	ctx, cancel = context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := n.All(ctx, now, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it says %v", err)
	}
}

// Of many others at its endpoints a run is played beside the most urgent, those that wait left out.
func TestOnlyTheMostUrgentAreBeside(t *testing.T) {
	t.Parallel()
	n := &forecast.Network{Endpoints: []forecast.Endpoint{{Name: "a", Budget: 8}}}
	for run := range 20 {
		n.Runs = append(n.Runs, forecast.Run{ID: fmt.Sprint(run), Priority: run, Idle: run == 19})
		n.Steps = append(n.Steps, step("a", 0, 800, cost(1, 8)))
		n.Steps[run].Run = run
	}
	some := n.Around(0, 16)
	if len(some.Runs) != 17 || some.Runs[0].ID != "0" || some.Runs[1].ID != "18" || some.Runs[16].ID != "3" {
		t.Errorf("there are %+v", some.Runs)
	}
	want(t, "beside sixteen", some, 171)
}

// Beginnings of ids that were given at about the same time are the same.
func TestAnotherRunIsNamedExactly(t *testing.T) {
	t.Parallel()
	network := func() *forecast.Network {
		n := one(step("a", 0, 8000, cost(1, 8)))
		for _, id := range []string{"0190aaaa-1", "0190aaaa-12", "0190aaab-1"} {
			n.Runs = append(n.Runs, forecast.Run{ID: id, Name: "daily"})
		}
		return n
	}
	for ref, says := range map[string]string{
		"0190aaaa":    "several runs are called so; give more of the id of one: 0190aaaa-1 (daily), 0190aaaa-12 (daily)",
		"daily":       "0190aaab-1 (daily)",
		"0190aaaa-1":  "",
		"0190aaaa-12": "",
		"0190aaab":    "",
	} {
		if err := network().Apply(0, "without="+ref); (err == nil) != (says == "") ||
			err != nil && !strings.Contains(err.Error(), says) {
			t.Errorf("without=%s: %v; want %q", ref, err, says)
		}
	}
}

// Whatever is in flight, held, retried or shared, each run ends, at times in their order.
func TestEachRunEnds(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 3))
		n := random(r)
		for e := range n.Endpoints {
			at := &n.Endpoints[e]
			at.Auto, at.Level = r.IntN(2)*8, float64(r.IntN(9))
			at.Rate, at.RequestRate = float64(r.IntN(3)/2*500), float64(r.IntN(3)/2*50)
			at.Workers = float64(r.IntN(3)/2) * 3
		}
		for run := range n.Runs {
			n.Runs[run].Canary = r.IntN(3) == 0
		}
		for i := range n.Steps {
			s := &n.Steps[i]
			s.Auto, s.Endpoint = r.IntN(2) == 0, r.IntN(len(n.Endpoints))
			if i > 1 && len(s.Needs) > 0 && n.Steps[i-2].Run == s.Run && s.Needs[0] != i-2 {
				s.Needs = append(s.Needs, i-2)
			}
			left := s.Items - s.Settled
			s.Ready = math.Floor(s.Ready * r.Float64() / 2)
			s.Out, s.Retrying = math.Floor(left/8*r.Float64()), math.Floor(left/8*r.Float64())
			if len(s.Needs) == 0 {
				s.Held = left - s.Ready - s.Out - s.Retrying
			}
		}
		if r.IntN(2) == 0 {
			n.Fit()
		}
		for run, f := range outcomes(t, n) {
			if f.P50 == nil || f.P10.After(*f.P50) || f.P50.After(*f.P90) || !f.P50.After(now) || f.WhyNot != "" {
				t.Errorf("seed %d: of run %d it says %+v", seed, run, f.Forecast)
			}
		}
	}
}

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
			!strings.Contains(a.BoundBy, "8 requests in flight") || b.BoundBy != "what it needs" || b.Idle < 0.5 ||
			a.Idle > 0.6 {
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
