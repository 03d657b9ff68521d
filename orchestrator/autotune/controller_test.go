package autotune

import (
	"cmp"
	"fmt"
	"math"
	"testing"
)

// scene is an endpoint to be paced.
type scene struct {
	name    string
	model   serviceModel
	chunk   int // 0: the controller's choice
	settle  float64
	span    float64  // over which it is judged; 0: 200 s
	maxWait float64  // that requests may spend in the queue at most, once settled; 0: not looked at
	best    float64  // items a second by the best of many settings that stay as they are
	begin   Settings // what it begins with; zero: nothing is known
}

// together is services on one machine whose throughput peaks at so many requests at once, by Gunther's universal
// scalability law.
func together(best, request, item float64) serviceModel {
	return serviceModel{instances: 1, concurrency: 1024,
		took:     func(n, _, _ int) float64 { return request + item*float64(n) },
		slowdown: func(busy int) float64 { return 1 + float64(busy*(busy-1))/(best*best) }}
}

func constant(d float64) func(int, int, int) float64 {
	return func(int, int, int) float64 { return d }
}

func scenes() []scene {
	return []scene{
		{name: "8 at once, 5 s each", model: serviceModel{instances: 2, concurrency: 4, took: constant(5)}, chunk: 500,
			settle: 120, maxWait: 6, best: 794},
		{name: "8 at once, 200 ms each", model: serviceModel{instances: 2, concurrency: 4, took: constant(0.2)},
			chunk: 500, settle: 60, maxWait: 1.5, best: 18917},
		{name: "200 at once, 1 s each", model: serviceModel{instances: 4, concurrency: 50, took: constant(1)},
			chunk: 100, settle: 120, maxWait: 2, best: 19916},
		{name: "fast", model: serviceModel{instances: 2, concurrency: 8, took: constant(0.005)}, chunk: 500, settle: 10,
			span: 20, maxWait: 1, best: 855689},
		{name: "slower with more, best at 8", model: serviceModel{instances: 2, concurrency: 256,
			took: func(_, busy, _ int) float64 { return 0.05 * (1 + math.Pow(float64(busy)/8, 2)) }}, chunk: 100,
			settle: 180, best: 7548},
		{name: "slower with more, best at 40", model: serviceModel{instances: 2, concurrency: 256,
			took: func(_, busy, _ int) float64 { return 0.2 * (1 + math.Pow(float64(busy)/40, 2)) }}, chunk: 100,
			settle: 180, best: 9780},
		{name: "slower with more, and yet more is more", model: serviceModel{instances: 2, concurrency: 256,
			took: func(_, busy, _ int) float64 { return 0.1 * (1 + float64(busy)/32) }}, chunk: 100, settle: 180,
			best: 30026},
		{name: "slower with more, quick", model: serviceModel{instances: 2, concurrency: 64,
			took: func(_, busy, _ int) float64 { return 0.01 * (1 + math.Pow(float64(busy)/8, 2)) }}, chunk: 100,
			settle: 120, span: 60, best: 32184},
		{name: "one machine, best at 12", model: together(12, 0.01, 0.00025), settle: 30, span: 100, best: 24576},
		{name: "one machine, best at 12, from 64", model: together(12, 0.01, 0.00025), settle: 60, span: 100,
			best: 24576, begin: Settings{InFlight: 64}},
		{name: "one machine, best at 3", model: together(3, 0.01, 0.0005), settle: 60, span: 100, best: 3527},
		{name: "one machine, best at 100", model: together(100, 0.3, 0.001), settle: 60, span: 100, best: 41708},
		{name: "a pool of 8 behind many hands", model: serviceModel{instances: 1, concurrency: 1024,
			took:     func(n, _, _ int) float64 { return 0.01 + 0.0003*float64(n) },
			slowdown: func(busy int) float64 { return max(1, float64(busy)/8) }}, settle: 30, span: 100,
			best: 26640},
		{name: "one slow of three", model: serviceModel{instances: 3, concurrency: 4,
			took: func(_, _, instance int) float64 { return []float64{0.1, 0.1, 2}[instance] }}, chunk: 100,
			settle: 120, best: 7887},
		{name: "overhead", model: serviceModel{instances: 2, concurrency: 4,
			took: func(n, _, _ int) float64 { return 0.1 + 0.0001*float64(n) }}, settle: 240, best: 71680},
		{name: "superlinear", model: serviceModel{instances: 2, concurrency: 4,
			took: func(n, _, _ int) float64 { return 1e-5 * float64(n*n) }}, settle: 150, span: 30, best: 20020},
		{name: "killed over 300 items", model: serviceModel{instances: 2, concurrency: 4, kills: 300, timeout: 10,
			took: func(n, _, _ int) float64 { return 0.02 + 0.001*float64(n) }}, settle: 300, best: 7173},
	}
}

func TestAControllerComesNearTheBestFixedSetting(t *testing.T) {
	t.Parallel()
	for _, sc := range scenes() {
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel()
			span := cmp.Or(sc.span, 200)
			for seed := range uint64(3) {
				c := New(Settings{InFlight: sc.begin.InFlight, Chunk: cmp.Or(sc.chunk, sc.begin.Chunk)}, nil)
				s := newSimulation(sc.model, c.Settings(), seed)
				s.chunkAuto = sc.chunk == 0
				changes := s.run(c, sc.settle+span)
				got := s.rate(sc.settle, sc.settle+span)
				wait := s.longestWait(sc.settle)
				t.Logf("seed %d: %.0f items/s, best %.0f; longest wait %.1f s; %d changes; ends with %+v", seed,
					got, sc.best, wait, len(changes), c.Settings())
				if got < 0.9*sc.best || sc.maxWait > 0 && wait > sc.maxWait {
					logAll(t, changes)
					t.Errorf("seed %d: %.0f items/s is %.0f%% of %.0f; wait %.1f s", seed, got, 100*got/sc.best, sc.best, wait)
				}
			}
		})
	}
}

func logAll(t *testing.T, changes []Change) {
	t.Helper()
	for _, change := range changes {
		t.Log(change)
	}
}

func (c Change) String() string {
	return fmt.Sprintf("%s: %s → %s: %s", c.What, c.Before, c.After, c.Reason)
}
