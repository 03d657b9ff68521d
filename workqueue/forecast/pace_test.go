package forecast_test

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/workqueue/forecast"
)

// timed is a network whose first run is to be done in so many seconds.
func timed(by float64, gentle bool, n *forecast.Network) *forecast.Network {
	n.Runs[0].Timed, n.Runs[0].DoneBy, n.Runs[0].Gentle = true, by, gentle
	return n
}

// sharing are two runs of a step at an endpoint with a budget.
func sharing(mine, other float64, budget int) *forecast.Network {
	n := one(step("a", 0, mine, cost(1, 8)), step("a", 0, other, cost(1, 8)))
	n.Endpoints[0].Budget = budget
	n.Runs = append(n.Runs, forecast.Run{ID: "day", Name: "yesterday"})
	n.Steps[1].Run = 1
	return n
}

func paces(t *testing.T, n *forecast.Network) ([]forecast.Pace, *forecast.Network) {
	t.Helper()
	all, paced, err := n.Paces(t.Context(), now)
	if err != nil {
		t.Fatal(err)
	}
	return all, paced
}

// What a run needs: 8000 items of a second for ten are 100 s of eight requests.
func TestPaces(t *testing.T) {
	t.Parallel()
	capped := func(n *forecast.Network, limit int) *forecast.Network { n.Steps[0].Cap = limit; return n }
	plain := func() *forecast.Network { return one(step("a", 0, 8000, cost(1, 8))) }
	urgent := sharing(8000, 8000, 8)
	urgent.Runs[0].Priority = 1
	for name, c := range map[string]struct {
		network     *forecast.Network
		least, most int // of the cap
		share       int
		atRisk      bool
	}{
		"gentle, with four times as long":   {timed(420, true, one(step("a", 0, 8000, cost(1, 8)))), 2, 4, 1, false},
		"gentle, with little to spare":      {timed(150, true, one(step("a", 0, 8000, cost(1, 8)))), 0, 8, 1, false},
		"gentle, and late":                  {timed(60, true, one(step("a", 0, 8000, cost(1, 8)))), 0, 0, 1, true},
		"in time, and not gentle":           {timed(420, false, one(step("a", 0, 8000, cost(1, 8)))), 0, 0, 1, false},
		"a cap that is enough stays":        {capped(timed(420, true, plain()), 4), 4, 4, 1, false},
		"a cap that is too low goes up":     {capped(timed(200, true, plain()), 2), 5, 8, 1, false},
		"one of one stays one":              {timed(1e5, true, one(step("a", 0, 800, cost(1, 8)))), 1, 1, 1, false},
		"a time that is over":               {timed(-5, true, one(step("a", 0, 8000, cost(1, 8)))), 0, 0, 1, true},
		"late by halves, not by more":       {timed(130, false, sharing(8000, 8000, 8)), 0, 0, 4, false},
		"in time by halves":                 {timed(300, false, sharing(8000, 8000, 8)), 0, 0, 1, false},
		"late even alone":                   {timed(60, false, sharing(8000, 8000, 8)), 0, 0, 4, true},
		"the more urgent run needs no more": {timed(60, false, urgent), 0, 0, 1, true},
		"nothing is known": {capped(timed(60, true, one(step("a", 0, 8000, forecast.Cost{}))), 3),
			0, 0, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all, _ := paces(t, c.network)
			p := all[0]
			if p.Caps[0] < c.least || p.Caps[0] > c.most || p.Share != c.share || p.AtRisk != c.atRisk {
				t.Errorf("%+v; want a cap of %d to %d, share %d, at risk %t", p, c.least, c.most, c.share, c.atRisk)
			}
		})
	}
}

// A gentle run is done by its time, and not long before it.
func TestAGentleRunUsesItsTime(t *testing.T) {
	t.Parallel()
	for by, least := range map[float64]float64{100: 0.85, 1000: 0.95} {
		n, took := timed(by, true, one(step("a", 0, 32*by, cost(1, 8)))), 0.0
		for s := &n.Steps[0]; s.Ready > 0; took += 10 {
			n.Runs[0].DoneBy = by - took
			all, _ := paces(t, n)
			s.Cap = all[0].Caps[0]
			s.Ready = max(s.Ready-10*10*float64(cmp.Or(s.Cap, s.InFlight)), 0)
			s.Settled = s.Items - s.Ready
		}
		if took > by || took < least*by {
			t.Errorf("it is to be done in %v s, and takes %v s", by, took)
		}
	}
}

// One is said to be late once half of its courses are, and until it is plainly not.
func TestARiskDoesNotFlap(t *testing.T) {
	t.Parallel()
	said := false
	for _, c := range []struct {
		by   float64
		want bool
	}{{130, false}, {104, false}, {95, true}, {104, true}, {112, false}, {104, false}} {
		n := timed(c.by, false, one(step("a", 0, 8000, cost(1, 8))))
		n.Runs[0].AtRisk = said
		all, _ := paces(t, n)
		if said = all[0].AtRisk; said != c.want {
			t.Errorf("to be done in %v s, ends in %v s: at risk %t", c.by, all[0].P50, said)
		}
	}
}

// The change that would be enough, and with it the run is in time.
func TestFixes(t *testing.T) {
	t.Parallel()
	rated := one(step("a", 0, 8000, cost(1, 8)))
	rated.Steps[0].Rate = 40
	equals := func(namespace string) *forecast.Network {
		n := sharing(8000, 8000, 0)
		n.Endpoints[0].Rate, n.Runs[0].Priority, n.Runs[1].Priority = 80, math.MaxInt32, math.MaxInt32
		n.Runs[1].Namespace = namespace
		return timed(150, false, n)
	}
	for name, c := range map[string]struct {
		network       *forecast.Network
		text, command string
	}{
		"in flight": {timed(80, false, one(step("a", 0, 8000, cost(1, 8)))), "in_flight of a from 8 to 1",
			"tranche run set night --step a --in-flight 1"},
		"a budget": {timed(150, false, func() *forecast.Network {
			n := one(step("a", 0, 8000, cost(1, 4)))
			n.Endpoints[0].Budget = 4
			return n
		}()), "budget of a from 4 to ", "tranche endpoints set a --max-in-flight "},
		"a rate":              {timed(150, false, rated), "rate of a from 40 to ", "tranche run set night --step a --rate "},
		"a shared one":        {timed(125, false, sharing(8000, 80000, 8)), "budget of a from 8 to ", "tranche endpoints"},
		"another run":         {equals(""), "pausing run yesterday", "tranche run pause day"},
		"another namespace's": {equals("theirs"), "", ""},
		"none":                {timed(1, false, one(step("a", 0, 8000, cost(1, 8)))), "", ""},
		"none of a chain": {timed(50, false,
			one(step("a", 0, 8000, cost(1, 8)), step("b", 1, 8000, cost(1, 8), 0))), "", ""},
		"a time long past": {timed(-50, false, one(step("a", 0, 8000, cost(1, 8)))), "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			found, err := c.network.Fix(t.Context(), now, 0)
			if err != nil {
				t.Fatal(err)
			}
			if found == nil {
				found = &forecast.Fix{}
			}
			if (found.Text == "") != (c.text == "") || !strings.HasPrefix(found.Text, c.text) ||
				!strings.HasPrefix(found.Command, c.command) {
				t.Errorf("%+v; want %q, %q", found, c.text, c.command)
			}
			if at := strings.LastIndex(found.Text, " to "); at > 0 {
				n := c.network.Clone()
				setting := strings.Fields(found.Text)[0]
				if err := n.Apply(0, "a."+setting+"="+found.Text[at+4:]); err != nil {
					t.Fatal(err)
				}
				if _, p90, _ := outcomes(t, n)[0].Left(now); p90 > 1.05*c.network.Runs[0].DoneBy {
					t.Errorf("with %s it ends in %v s", found.Text, p90)
				}
			}
		})
	}
}

// In any network: no cap is above a limit, more time never brings more in flight, one that would be in time at full
// speed is in time when it is gentle, and no other run that was in time is late for it.
func TestPacesKeepTheirPromises(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		random := rand.New(rand.NewPCG(seed, 5))
		n := sharing(500+8000*random.Float64(), 500+8000*random.Float64(), 2+random.IntN(20))
		n.Steps = append(n.Steps, step("b", 1, n.Steps[0].Items, cost(0.2+random.Float64(), 8), 0))
		n.Steps[0].InFlight, n.Steps[0].Auto = 1+random.IntN(40), random.IntN(2) == 0
		if random.IntN(2) == 0 {
			n.Endpoints[0].Auto = 1 + random.IntN(20)
		}
		n.Runs[1].Timed, n.Runs[1].DoneBy = random.IntN(2) == 0, 50+400*random.Float64()
		full := outcomes(t, timed(1, false, n).Clone())
		_, free, _ := full[0].Left(now)
		other, _, _ := full[1].Left(now)
		last := 1e9
		for by := 0.5 * free; by < 4*free; by += 0.25 * free {
			all, paced := paces(t, timed(by, true, n.Clone()))
			p := all[slices.IndexFunc(all, func(p forecast.Pace) bool { return p.Run == 0 })]
			out := 0.0
			for i, limit := range p.Caps {
				s := &n.Steps[[]int{0, 2}[i]]
				if limit > s.InFlight {
					t.Fatalf("seed %d: a cap of %d above %d", seed, limit, s.InFlight)
				}
				if limit == 0 {
					limit = 1e6
				}
				out += float64(limit)
			}
			what := fmt.Sprintf("seed %d: to be done in %.0f s, free in %.0f s, caps %v, share %d, ends in %.0f s", seed, by,
				free, p.Caps, p.Share, p.P90)
			even := p.Share == 1 && paced.Runs[1].Share <= 1 // else who goes first may change with the time
			if even && out > last {
				t.Errorf("%s: more time, and more in flight", what)
			}
			if even {
				last = out
			}
			if slices.Max(p.Caps) > 0 && p.P90 > by {
				t.Errorf("%s: late for being gentle", what)
			}
			after := outcomes(t, paced)
			if o, _, _ := after[1].Left(now); n.Runs[1].Timed && other <= n.Runs[1].DoneBy && o > n.Runs[1].DoneBy {
				t.Errorf("%s: the other run ends in %.0f s, is to in %.0f s, and would have in %.0f s", what, o,
					n.Runs[1].DoneBy, other)
			}
		}
	}
}
