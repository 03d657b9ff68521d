package autotune

import (
	"math"
	"testing"
)

// reach is a service of which a first run and a next one have to make the most within so many seconds.
type reach struct {
	name  string
	model serviceModel
	// first changes what the first run meets, which is not judged then.
	first  func(*simulation)
	model2 *serviceModel // of the next run, when it is another
	best   float64       // that there is, or what the best of many settings does that stay as they are
	length float64       // of the first run; 0: 45 s
}

// within is how soon the most must be made of it.
const within = 20

// down has services answer nothing between two times.
func down(m serviceModel, from, to float64) serviceModel {
	m.timeout = 10
	m.down = func(now float64) bool { return now > from && now < to }
	return m
}

func reaches() []reach {
	peak, pool := together(12, 0.01, 0.00025), serviceModel{instances: 1, concurrency: 1024,
		took:     func(n, _, _ int) float64 { return 0.01 + 0.0003*float64(n) },
		slowdown: func(busy int) float64 { return max(1, float64(busy)/8) }}
	four := serviceModel{instances: 1, concurrency: 4, took: func(n, _, _ int) float64 { return 0.02 + 0.002*float64(n) }}
	eight := four
	eight.instances = 2
	steep := serviceModel{instances: 1, concurrency: 1024,
		took:     func(n, _, _ int) float64 { return 0.01 + 0.00025*float64(n) },
		slowdown: func(busy int) float64 { return 1 + math.Pow(float64(busy)/12, 3) }}
	return []reach{
		{name: "slower the more at once, best at 12", model: peak, best: 24576},
		{name: "much slower the more at once", model: steep, best: 23957},
		{name: "8 workers", model: pool, best: 25800},
		{name: "refuses over 8,000 items/s", model: serviceModel{instances: 1, concurrency: 16, took: constant(0.02),
			limit: 8000, burst: 2000}, best: 8000},
		{name: "after a kill near the end", model: down(four, 30, 90), model2: &four, best: 1953, length: 50,
			first: func(s *simulation) { s.demand = func(now float64) bool { return now < 33 } }},
		{name: "after a kill in the midst", model: down(four, 30, 40), model2: &four, best: 1953, length: 45},
		{name: "after a canary", model: four, best: 1953, length: 12,
			first: func(s *simulation) {
				s.single = func(float64) bool { return true }
				s.demand = func(now float64) bool { return now < 6 }
			}},
		{name: "after the instances doubled", model: four, model2: &eight, best: 3906},
	}
}

// A first run makes nearly the most of a service within 20 s, and the next one, which begins with what was learned,
// more than that: whatever has happened at the end of the first.
func TestBothRunsReachTheBest(t *testing.T) {
	t.Parallel()
	for _, r := range reaches() {
		t.Run(r.name, func(t *testing.T) {
			t.Parallel()
			const seeds = 5
			var first, next float64
			for seed := range uint64(seeds) {
				a, b := r.check(t, seed)
				first, next = first+a/seeds, next+b/seeds
			}
			t.Logf("first run %.2f, next run %.2f of the best", first, next)
			if first < 0.9 || next < 0.95 {
				t.Errorf("first run %.2f, next run %.2f of the best", first, next)
			}
		})
	}
}

func (r *reach) check(t *testing.T, seed uint64) (first, next float64) {
	t.Helper()
	length := r.length
	if length == 0 {
		length = within + 45
	}
	learning := New(Settings{}, nil)
	s := newSimulation(r.model, learning.Settings(), seed)
	s.chunkAuto = true
	if r.first != nil {
		r.first(s)
	}
	changes := s.run(learning, length+0.3)
	first = 1 // where it is not looked at
	if r.first == nil && r.model2 == nil {
		first = r.judge(t, seed, "first run", s, 0.87, changes)
	}
	second := New(learning.Settings(), learning.Learned())
	model := r.model
	if r.model2 != nil {
		model = *r.model2
	}
	s = newSimulation(model, second.Settings(), seed+100)
	s.chunkAuto, s.tokens, s.began = true, second.Settings().Rate, length+60
	began := second.Settings()
	changes = s.run(second, within+40.3)
	t.Logf("seed %d: the next run begins with %+v and ends with %+v", seed, began, second.Settings())
	return first, r.judge(t, seed, "next run", s, 0.92, changes)
}

// judge holds what is done from 20 s on against the best. A window has few requests, which take
// from 0.8 to 1.2 times their time: of one seed a little less is asked than of all.
func (r *reach) judge(
	t *testing.T, seed uint64, what string, s *simulation, share float64, changes []Change,
) float64 {
	t.Helper()
	got := s.rate(within, within+40)
	t.Logf("seed %d: %s: %.0f items/s is %.2f of %.0f, the best", seed, what, got, got/r.best, r.best)
	if got < share*r.best {
		t.Errorf("seed %d: %s: %.2f of the best from %d s on", seed, what, got/r.best, within)
		logAll(t, changes)
	}
	return got / r.best
}
