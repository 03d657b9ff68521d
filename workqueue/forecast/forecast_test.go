package forecast_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/workqueue/forecast"
)

var now = time.Date(2026, 11, 27, 4, 0, 0, 0, time.UTC)

// cost is that of requests of ten items that took so many seconds, so many of them concurrently.
func cost(seconds float64, atOnce int) forecast.Cost {
	var all []forecast.Request
	for i := range 40 * atOnce {
		ended := -float64(i/atOnce) * seconds
		all = append(all, forecast.Request{Items: 10, First: true, Began: ended - seconds, Ended: ended, Took: seconds})
	}
	return forecast.Measure(all, false)
}

// step is one that has done nothing of its items.
func step(name string, endpoint int, items float64, c forecast.Cost, needs ...int) forecast.Step {
	s := forecast.Step{Name: name, Endpoint: endpoint, Items: items, InFlight: 8, Attempts: 3, Backoff: 1, MaxBackoff: 60,
		Cost: c, Needs: needs}
	if len(needs) == 0 {
		s.Ready = items
	}
	return s
}

func one(steps ...forecast.Step) *forecast.Network {
	return &forecast.Network{Runs: []forecast.Run{{ID: "night"}}, Steps: steps,
		Endpoints: []forecast.Endpoint{{Name: "a"}, {Name: "b"}}}
}

func outcomes(t *testing.T, n *forecast.Network) []forecast.Outcome {
	t.Helper()
	out, err := n.All(t.Context(), now, 7)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := json.Marshal(out); err != nil {
		t.Fatal(err)
	}
	for _, o := range out {
		for _, said := range []string{o.BoundBy, o.WaitsFor, o.WhyNot} {
			if len(strings.Fields(said)) > 50 {
				t.Errorf("no one reads: %s", said)
			}
		}
	}
	return out
}

func seconds(t *testing.T, at *time.Time) float64 {
	t.Helper()
	if at == nil {
		t.Fatal("there is no time")
	}
	return at.Sub(now).Seconds()
}

// What runs of known shapes come to: 8 requests of ten items a second each are 80 items a second.
func TestAForecastIsWhatArithmeticSays(t *testing.T) {
	t.Parallel()
	second := cost(1, 8)
	barrier := step("b", 1, 8000, second, 0)
	barrier.Barrier = true
	for name, c := range map[string]struct {
		network *forecast.Network
		want    float64
		says    string
	}{
		"one step": {one(step("a", 0, 8000, second)), 101, "a is the bottleneck: 8 requests in flight by its in_flight"},
		"a pipe": {one(step("a", 0, 8000, cost(0.4, 8)), step("b", 1, 8000, second, 0)), 102,
			"b is the bottleneck: 8 requests in flight by its in_flight"},
		"a slow first step": {one(step("a", 0, 8000, second), step("b", 1, 8000, cost(0.4, 8), 0)), 102,
			"a is the bottleneck: 8 requests in flight by its in_flight; b is idle 60%"},
		"a barrier": {one(step("a", 0, 8000, second), barrier), 202, "8 requests in flight by its in_flight"},
		"a budget": {func() *forecast.Network {
			n := one(step("a", 0, 8000, cost(1, 4)))
			n.Endpoints[0].Budget = 4
			return n
		}(), 201, "a is the bottleneck: 4 requests in flight by the budget of a"},
		"a rate": {func() *forecast.Network {
			n := one(step("a", 0, 8000, second))
			n.Steps[0].Rate = 40
			return n
		}(), 201, "40 items a second by its rate"},
		"two runs that share": {func() *forecast.Network {
			n := one(step("a", 0, 4000, second), step("a", 0, 8000, second))
			n.Endpoints[0].Budget = 8
			n.Runs = append(n.Runs, forecast.Run{ID: "day", Name: "yesterday"})
			n.Steps[1].Run = 1
			return n
		}(), 101, "it shares a with others that are as urgent"},
		"the more urgent first": {func() *forecast.Network {
			n := one(step("a", 0, 4000, second), step("a", 0, 8000, second))
			n.Endpoints[0].Budget = 8
			n.Runs = append(n.Runs, forecast.Run{ID: "day", Name: "yesterday"})
			n.Runs[0].Priority, n.Steps[1].Run = 1, 1
			return n
		}(), 51, "a is the bottleneck"},
		"a larger share of what is less urgent": {func() *forecast.Network {
			n := sharing(4000, 8000, 8)
			n.Runs[0].Share, n.Runs[1].Priority = 4, 1
			return n
		}(), 151, "a is the bottleneck"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := outcomes(t, c.network)[0]
			p10, p50, p90 := seconds(t, f.P10), seconds(t, f.P50), seconds(t, f.P90)
			if math.Abs(p50-c.want) > 0.04*c.want || p10 > p50 || p50 > p90 || p90-p10 > 0.3*c.want || f.WhyNot != "" {
				t.Errorf("it ends in %.1f s (%.1f to %.1f), %q; want %v", p50, p10, p90, f.WhyNot, c.want)
			}
			if !strings.Contains(f.BoundBy, c.says) {
				t.Errorf("it is bound by %q; want %q", f.BoundBy, c.says)
			}
		})
	}
}

// What is waited for has no time, but how long it takes after that.
func TestAForecastSaysWhoIsWaitedFor(t *testing.T) {
	t.Parallel()
	gate := step("send", 1, 8000, cost(1, 8), 0)
	gate.Barrier, gate.Gate = true, true
	canary := step("a", 0, 8000, cost(1, 8))
	canary.Ready, canary.Held = 80, 7920
	second := step("b", 1, 8000, cost(0.5, 8), 0)
	open := step("a", 0, 8000, cost(1, 8))
	n := one(open)
	n.Endpoints[0].Down = "a to answer again: its breaker is open"
	held := one(open)
	held.Runs[0].Person = "an operator to resume it"
	beside := open
	beside.Run = 1
	both := one(open, beside)
	both.Runs[0].Person = "an operator to resume it"
	both.Runs = append(both.Runs, both.Runs[0])
	both.Endpoints[0].Budget = 8
	gates := one(step("check", 0, 8000, cost(1, 8)))
	for range 20 {
		gates.Steps = append(gates.Steps, gate)
	}
	sampled := one(canary, second)
	sampled.Runs[0].Canary, sampled.Runs[0].Approve = true, true
	for name, c := range map[string]struct {
		network    *forecast.Network
		what       string
		from, then float64
	}{
		"a gate":      {one(step("check", 0, 8000, cost(1, 8)), gate), "approval of step send", 101, 101},
		"many gates":  {gates, "approval of step send and of step send and of step send and of 17 others", 101, 114},
		"a hold":      {held, "an operator to resume it", 0, 101},
		"two holds":   {both, "an operator to resume it", 0, 101},
		"a canary":    {sampled, "approval of its canary", 2, 100},
		"an endpoint": {n, "a to answer again: its breaker is open", 0, 101},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := outcomes(t, c.network)[0]
			if f.WaitsFor != c.what || f.P50 != nil || f.Then == nil || math.Abs(f.Then.P50-c.then) > 0.05*c.then ||
				(f.WaitsFrom != nil) != (c.from > 0) || c.from > 0 && math.Abs(seconds(t, f.WaitsFrom)-c.from) > 4 {
				t.Errorf("it waits for %q from %v, ends %v, and takes %+v then; want %+v", f.WaitsFor, f.WaitsFrom, f.P50, f.Then,
					c)
			}
		})
	}
}

// Without measurements there is no time, and a reason.
func TestAForecastSaysWhyThereIsNone(t *testing.T) {
	t.Parallel()
	unknown, still := one(step("send", 1, 8000, forecast.Cost{})), one(step("a", 0, 8000, cost(1, 8)))
	still.Steps[0].InFlight = 0
	loading := one(step("a", 0, 8000, cost(1, 8)))
	loading.Runs[0].WhyNot = "its items are being loaded"
	for says, n := range map[string]*forecast.Network{
		"of the newest requests of endpoint b fewer than 3 are of step send, here or in earlier runs of its plan": unknown,
		"step a cannot continue as things are": still, "its items are being loaded": loading,
	} {
		if f := outcomes(t, n)[0]; f.P50 != nil || f.WhyNot != says || f.Steps != nil {
			t.Errorf("%+v; want %q", f, says)
		}
	}
}

// random is a network of one or two runs with steps of all kinds, those of one run at endpoints of their own: of steps
// that share one, the wrong one may get what comes free.
func random(r *rand.Rand) *forecast.Network {
	n := &forecast.Network{Endpoints: make([]forecast.Endpoint, 5)}
	for e := range n.Endpoints {
		n.Endpoints[e] = forecast.Endpoint{Name: fmt.Sprint("e", e), Budget: r.IntN(3) * (4 + r.IntN(12))}
	}
	for run := range 1 + r.IntN(2) {
		n.Runs = append(n.Runs, forecast.Run{ID: fmt.Sprint(run), Name: fmt.Sprint(run), Priority: r.IntN(2)})
		first := len(n.Steps)
		for i := range 1 + r.IntN(4) {
			var needs []int
			if i > 0 {
				needs = []int{first + r.IntN(i)}
			}
			s := step(fmt.Sprint("s", i), i, 1000+float64(r.IntN(100_000)), cost(0.1+r.Float64()*3, 1+r.IntN(9)), needs...)
			s.Run, s.Barrier, s.InFlight = run, i > 0 && r.IntN(3) == 0, 1+r.IntN(16)
			if i == 0 {
				s.Settled = math.Floor(s.Items * r.Float64())
				s.Ready = s.Items - s.Settled
			}
			if r.IntN(4) == 0 {
				s.Failed = 1
			}
			s.Cost.Again = float64(r.IntN(2)) * r.Float64() / 4
			n.Steps = append(n.Steps, s)
		}
	}
	return n
}

// ends are the band in which the first run ends, in seconds.
func ends(t *testing.T, n *forecast.Network) [3]float64 {
	t.Helper()
	f := outcomes(t, n)[0]
	return [3]float64{seconds(t, f.P10), seconds(t, f.P50), seconds(t, f.P90)}
}

// Whatever the network: the same seed says the same; a step that ended adds nothing; a run alone ends no later; and
// with more places for its steps, or at its endpoints, it ends no later where no one else takes what comes free.
func TestForecastsKeepTheirLaws(t *testing.T) {
	t.Parallel()
	for seed := range uint64(100) {
		r := rand.New(rand.NewPCG(seed, 1))
		n := random(r)
		was := ends(t, n)
		if again := ends(t, n.Clone()); again != was {
			t.Fatalf("seed %d: %v, and then %v", seed, was, again)
		}
		done := n.Clone()
		last := step("done", 4, 5000, forecast.Cost{}, 0)
		last.Settled = last.Items
		done.Steps = append(done.Steps, last)
		if got := ends(t, done); !near(got, was, 0.08) {
			t.Errorf("seed %d: %v; with a step that ended %v", seed, was, got)
		}
		alone := n.Clone()
		if len(n.Runs) > 1 {
			if err := alone.Apply(0, "without=1"); err != nil {
				t.Fatal(err)
			}
		}
		before := ends(t, alone)
		later(t, seed, "alone", was, before, 0.02)
		for i := range alone.Steps {
			more := alone.Clone()
			more.Steps[i].InFlight *= 2
			later(t, seed, "with more in flight", before, ends(t, more), 0.02)
			more = alone.Clone()
			more.Endpoints[more.Steps[i].Endpoint].Budget *= 2
			later(t, seed, "with a larger budget", before, ends(t, more), 0.02)
		}
	}
}

func later(t *testing.T, seed uint64, how string, was, is [3]float64, slack float64) {
	t.Helper()
	for i := range was {
		if is[i] > was[i]*(1+slack)+1e-6 {
			t.Errorf("seed %d: %s it ends in %v s instead of %v", seed, how, is, was)
			return
		}
	}
}

func near(a, b [3]float64, by float64) bool {
	for i := range a {
		if math.Abs(a[i]-b[i]) > by*b[i]+0.5 {
			return false
		}
	}
	return true
}

// Each change that can be supposed does what it says, and no other is taken.
func TestSupposedChanges(t *testing.T) {
	t.Parallel()
	base := func() *forecast.Network {
		n := one(step("a.b", 0, 8000, cost(1, 8)), step("a.b", 0, 80_000, cost(1, 8)))
		n.Runs = append(n.Runs, forecast.Run{ID: "day", Name: "yesterday"})
		n.Steps[1].Run, n.Endpoints[0].Budget = 1, 8
		return n
	}
	for change, want := range map[string]float64{"a.b.in_flight=2": 401, "a.b.budget=16": 101, "priority=9": 101,
		"without=yesterday": 101, "a.b.rate=20": 401, "rate=20": 401, "a.b.instances=1": 201} {
		n := base()
		if err := n.Apply(0, change); err != nil {
			t.Error(err)
		} else if got := ends(t, n)[1]; math.Abs(got-want) > 0.05*want {
			t.Errorf("%s: %.0f s; want %.0f", change, got, want)
		}
	}
	for change, says := range map[string]string{"x.in_flight=2": `no step "x"; it has: a.b`,
		"a.b.in_flight=0":     `in_flight: invalid value "0"; want 1 to 10000`,
		"a.b.in_flight=10001": "want 1 to 10000", "a.b.budget=0": "budget: invalid value",
		"a.b.chunk=8193": "want 1 to 8192", "a.b.instances=10001": "want 1 to 10000",
		"a.b.rate=0.0001": `rate: invalid value "0.0001"; want 0.001 to 10000000, or 0 for no limit`, "rate=-1": "want 0.001",
		"priority=1.5": `priority: invalid value "1.5"; want -2147483648 to 2147483647`, "priority=3000000000": "want -2147",
		"a.b.in_flight=x": "invalid value", "a.b.color=1": `no setting "color"`, "in_flight=3": `no setting "in_flight"`,
		"without=year": "these do: yesterday", "a.b.in_flight=NaN": "invalid value", "a.b.chunk=1.5": "want 1 to 8192",
		"a.b.rate=NaN": "invalid value", "a.b.rate=Inf": "invalid value", "without=": "no such run"} {
		if err := base().Apply(0, change); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v; want %q", change, err, says)
		}
	}
	n := base()
	before := n.Clone()
	if changed := n.Clone(); changed.Apply(0, "a.b.chunk=40") != nil || changed.Steps[0].Cost.Chunk != 40 ||
		!reflect.DeepEqual(n, before) {
		t.Error("the size of requests does not change, or changes where it was copied from")
	}
}

// Requests in flight count as far as they have come: without them the slow ones are missing while a run is young.
func TestSlowRequestsCountWhileTheyAreInFlight(t *testing.T) {
	t.Parallel()
	var all []forecast.Request
	for i := range 20 {
		all = append(all, forecast.Request{Items: 10, First: true, Began: -float64(i) - 2, Ended: -float64(i) - 1, Took: -1})
	}
	quick := forecast.Measure(all, false)
	for range 10 {
		all = append(all, forecast.Request{Items: 10, First: true, Began: -9, Live: true})
	}
	slow := forecast.Measure(all, false)
	if quick.Slot < 0.099 || quick.Slot > 0.101 || slow.Slot < 3*quick.Slot || slow.Oldest != 9 {
		t.Errorf("an item costs %v s, and with slow requests %v", quick.Slot, slow.Slot)
	}
	all = []forecast.Request{{Items: 10, First: true, Began: -5, Live: true}}
	for i, at := range rand.New(rand.NewPCG(1, 1)).Perm(101) {
		ended := all[i].Began - 1
		all = append(all, forecast.Request{Items: 10, First: true, Began: ended - float64(at)/10, Ended: ended, Took: -1})
	}
	last := step("a", 0, 1000, forecast.Measure(all, false)) // the last request takes 5 s more at most
	last.Settled, last.Out, last.Ready = 990, 10, 0
	if got := ends(t, one(last)); !near(got, [3]float64{0.5, 2.5, 4.5}, 0.2) {
		t.Errorf("the last request ends in %v s", got)
	}
}

// Where requests have clearly become quicker or slower, those before tell nothing any more.
func TestWhatHasChangedIsMeasuredAnew(t *testing.T) {
	t.Parallel()
	for _, after := range []float64{1, 2, 4} {
		var all []forecast.Request
		for i := range 240 {
			at, took := -0.25*float64(i), after*(1+0.1*float64(i%3))
			if i > 80 {
				took *= 2 / after
			}
			all = append(all, forecast.Request{Items: 10, First: true, Began: at - took, Ended: at, Took: took})
		}
		if c := forecast.Measure(all, false); math.Abs(c.Slot-0.11*after) > 0.012*after {
			t.Errorf("requests took 2 s and take %v s now: an item costs %v s", after, c.Slot)
		}
	}
}

func TestAnOutageIsNotMeasured(t *testing.T) {
	t.Parallel()
	var all []forecast.Request
	for i := range 40 {
		at := float64(i - 40)
		r := forecast.Request{Items: 10, First: true, Began: at - 1, Ended: at}
		if r.Odd = i >= 20; r.Odd {
			r.First, r.Began = false, at-9
		}
		all = append(all, r)
	}
	if c := forecast.Measure(all, false); c.Slot != 0.1 || c.Again != 0 {
		t.Errorf("an item takes %v s, and %v are retried, not 0.1 and 0", c.Slot, c.Again)
	}
	if c := forecast.Measure(all[20:], false); c.Known() {
		t.Error("retries without a first request say what an item takes")
	}
	all[20].First = true
	if c := forecast.Measure(all[20:], false); !c.Known() {
		t.Error("nothing is known when all is of an outage")
	}
}

// A service for which requests wait is as fast as its workers: more in flight changes nothing, more instances do.
func TestAServiceThatRequestsWaitForIsTheBound(t *testing.T) {
	t.Parallel()
	var all []forecast.Request
	for i := range 320 {
		ended := -float64(i/2) * 0.5
		all = append(all, forecast.Request{Items: 10, First: true, Began: ended - 2, Ended: ended, Took: 0.5,
			Instance: "one"})
	}
	for i := range 6 { // began since the last that ended
		all = append(all, forecast.Request{Items: 10, First: true, Began: -0.5 * float64(i/2+1), Live: true, Took: -1})
	}
	n := one(step("a", 0, 8000, forecast.Measure(all, false)))
	n.Fit()
	f := outcomes(t, n)[0]
	const says = "works on 2 requests concurrently"
	if got := seconds(t, f.P50); math.Abs(got-200) > 12 || !strings.Contains(f.BoundBy, says) {
		t.Errorf("%.0f s, by %q", got, f.BoundBy)
	}
	for change, want := range map[string]float64{"a.in_flight=32": 200, "a.instances=2": 100} {
		changed := n.Clone()
		if err := changed.Apply(0, change); err != nil {
			t.Fatal(err)
		}
		if got := ends(t, changed)[1]; math.Abs(got-want) > 0.07*want {
			t.Errorf("%s: %.0f s; want %.0f", change, got, want)
		}
	}
}

// A forecast of a run of ten steps and ten million items costs under 50 ms.
func BenchmarkForecast(b *testing.B) {
	var steps []forecast.Step
	for i := range 10 {
		var needs []int
		if i > 0 {
			needs = []int{i - 1}
		}
		s := step(fmt.Sprint("s", i), i%2, 10_000_000, cost(0.5, 8), needs...)
		s.Barrier = i%4 == 3
		steps = append(steps, s)
	}
	n := one(steps...)
	b.Run("play", func(b *testing.B) {
		for b.Loop() {
			if _, err := n.All(b.Context(), now, 1); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("measure", func(b *testing.B) {
		var all []forecast.Request
		for i := range 1000 {
			all = append(all, forecast.Request{Items: 10, First: true, Began: -float64(i) - 2, Ended: -float64(i) - 1, Took: -1})
		}
		for b.Loop() {
			for range 10 {
				forecast.Measure(all, false)
			}
		}
	})
}
