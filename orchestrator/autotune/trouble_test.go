package autotune

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/workqueue"
)

// An outage cuts the limit; when it is over the limit is soon what it was.
func TestAControllerComesBackAfterAnOutage(t *testing.T) {
	t.Parallel()
	m := serviceModel{instances: 2, concurrency: 32, took: constant(0.3), timeout: 5,
		down: func(now float64) bool { return now > 60 && now < 90 }}
	for seed := range uint64(3) {
		c := New(Settings{Chunk: 100}, nil)
		s := newSimulation(m, c.Settings(), seed)
		changes := s.run(c, 200)
		before, after := s.rate(30, 60), s.rate(120, 200)
		if after < 0.9*before {
			t.Errorf("seed %d: %.0f items/s before the outage, %.0f from 30 s after it", seed, before, after)
			logAll(t, changes)
		}
	}
}

// The wanted time of a request is kept, whatever is faster.
func TestAChunkStaysWithinItsTime(t *testing.T) {
	t.Parallel()
	m := serviceModel{instances: 2, concurrency: 4, took: func(n, _, _ int) float64 { return 0.5 + 0.01*float64(n) }}
	c := New(Settings{Chunk: 500}, nil)
	s := newSimulation(m, c.Settings(), 1)
	s.chunkAuto, s.chunkTime = true, 2*time.Second
	s.run(c, 120)
	if got := c.Settings().Chunk; got != 100 {
		t.Errorf("chunk %d; 100 take 1.5 s, and 2 s are allowed", got)
	}
}

// A service that does not say how long it works is paced by what it holds.
func TestAServiceThatDoesNotSayHowLongItTakes(t *testing.T) {
	t.Parallel()
	m := serviceModel{instances: 2, concurrency: 4, took: constant(1), silent: true}
	const best = 2 * 4 * 100.
	c := New(Settings{Chunk: 100}, nil)
	s := newSimulation(m, c.Settings(), 1)
	changes := s.run(c, 260)
	got, wait := s.rate(60, 260), s.longestWait(60)
	if got < 0.9*best || wait > 3 {
		t.Errorf("%.0f items/s of %.0f, waits up to %.1f s", got, best, wait)
		logAll(t, changes)
	}
}

// A successor continues where the one before stopped.
func TestASuccessorKnowsWhatWasLearned(t *testing.T) {
	t.Parallel()
	m := serviceModel{instances: 2, concurrency: 4, took: constant(1)}
	first := New(Settings{Chunk: 100}, nil)
	s := newSimulation(m, first.Settings(), 1)
	s.run(first, 120)
	second := New(first.Settings(), first.Learned())
	if second.Settings() != first.Settings() || string(second.Learned()) != string(first.Learned()) {
		t.Errorf("%+v %s, then %+v %s", first.Settings(), first.Learned(), second.Settings(), second.Learned())
	}
	s = newSimulation(m, second.Settings(), 2)
	s.run(second, 120)
	if got, wait := s.rate(5, 120), s.longestWait(5); got < 700 || wait > 3 {
		t.Errorf("%.0f items/s from the start, waits up to %.1f s", got, wait)
	}
}

func TestNewTakesWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	c := New(Settings{InFlight: 5000}, []byte(`{"chunk":[`))
	if got := c.Settings(); got.InFlight != maxInFlight || got.Chunk != workqueue.DefaultAutoChunk {
		t.Errorf("%+v", got)
	}
}

// busy is a sample of an endpoint that answers n requests of 100 items in a second each.
func busy(c *Controller, at time.Time, places int) Sample {
	n := c.Settings().InFlight
	return Sample{At: at, Window: time.Second, Live: n, Known: true, InHands: n, Places: places, Demand: true,
		InFlightAuto: true, Ended: []Ended{{Requests: n, Items: 100 * n, Done: 100 * n, Timed: n,
			Took: time.Duration(n) * 900 * time.Millisecond, Clocked: n, Stay: time.Duration(n) * time.Second}}}
}

// An endpoint of which nothing is known begins with twice its places, except quick requests: they wait for nothing.
func TestAnUnknownEndpointBeginsWithItsRoom(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]int{time.Millisecond: defaultInFlight, time.Second: 4} {
		c, s := New(Settings{}, nil), busy(&Controller{}, time.Unix(100, 0), 2)
		s.Ended = nil
		c.Step(s) // nothing ended
		s.At = s.At.Add(time.Second)
		s.Ended = []Ended{{Requests: 3, Items: 300, Done: 300, Timed: 3, Took: 3 * took}}
		if c.Step(s); c.Settings().InFlight != want {
			t.Errorf("%d in flight where a request takes %s, want %d", c.Settings().InFlight, took, want)
		}
	}
}

// While the streams elect a leader nothing is answered, and what waited comes together afterwards. That says nothing
// about services: the limit is soon what it was, and so is the rate.
func TestAnElectionTeachesNothing(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]serviceModel{
		"quick, 8 at once":        {instances: 2, concurrency: 4, took: constant(0.2)},
		"quick, 64 at once":       {instances: 2, concurrency: 32, took: constant(0.3)},
		"a second, 16 at once":    {instances: 2, concurrency: 8, took: constant(1)},
		"two seconds, 8 at once":  {instances: 2, concurrency: 4, took: constant(2)},
		"places are not known":    {instances: 2, concurrency: 16, took: constant(0.3), hidden: true},
		"slower the more at once": together(12, 0.01, 0.00025),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(2) {
				for _, lasts := range []float64{3, 5, 8, 12} {
					m.away = [2]float64{100.4, 100.4 + lasts}
					c := New(Settings{Chunk: 100}, nil)
					s := newSimulation(m, c.Settings(), seed)
					changes := s.run(c, 200)
					before, after := s.rate(50, 100), s.rate(120+lasts, 200)
					if during := s.rate(102, 100+lasts); during > before/100 {
						t.Fatalf("seed %d: %.0f items/s while there is no leader", seed, during)
					}
					if soon := s.rate(105+lasts, 120+lasts); after < 0.95*before || soon < 0.85*before {
						t.Errorf("seed %d, %.0f s: %.0f items/s before, %.0f from 5 s after the election on, %.0f from 20 s on",
							seed, lasts, before, soon, after)
						logAll(t, changes)
						return
					}
				}
			}
		})
	}
}

// What a service refuses above a rate is learned, and nearly all of the rate is made use of.
func TestAControllerLearnsTheRateOfAServiceThatRefuses(t *testing.T) {
	t.Parallel()
	for name, m := range map[string]serviceModel{
		"items refused":    {limit: 1000},
		"requests refused": {limit: 1000, refuseWhole: true},
		"a low limit":      {limit: 20, refuseWhole: true},
		"a high limit":     {limit: 30000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			m.instances, m.concurrency, m.took = 2, 8, constant(0.05)
			for seed := range uint64(3) {
				c := New(Settings{Chunk: 100}, nil)
				s := newSimulation(m, c.Settings(), seed)
				changes := s.run(c, 360)
				got := s.rate(60, 360)
				t.Logf("seed %d: %.1f items/s of %.1f, %d changes, ends with %+v", seed, got, m.limit, len(changes), c.Settings())
				if got < 0.9*m.limit {
					t.Errorf("seed %d: %.1f items/s; %.1f are allowed", seed, got, m.limit)
					logAll(t, changes)
				}
			}
		})
	}
}

// A rate that is no longer needed goes.
func TestARateGoesWhenNothingIsRefusedAnyMore(t *testing.T) {
	t.Parallel()
	c := New(Settings{Chunk: 100, Rate: 100}, nil)
	s := newSimulation(serviceModel{instances: 1, concurrency: 8, took: constant(0.05)}, c.Settings(), 1)
	changes := s.run(c, 200)
	if got := s.rate(150, 200); got < 0.9*8/0.055*100 {
		t.Errorf("%.0f items/s", got)
		logAll(t, changes)
	}
}

// What a few samples, a second apart, do to the settings.
func TestSamples(t *testing.T) {
	t.Parallel()
	failed := func(code string, requests, items int) []Ended {
		return []Ended{{Requests: requests, Items: items, Code: code}}
	}
	answered := func(requests, items int, took time.Duration) Ended {
		return Ended{Requests: requests, Items: items, Done: items, Timed: requests, Took: took}
	}
	for name, tc := range map[string]struct {
		begin   Settings
		trying  int // requests in flight from which more are being tried; 0: nothing is tried
		samples int
		sample  func(c *Controller, at time.Time, n int) Sample
		right   func(s Settings, changes []Change) bool
	}{
		"a few timeouts are bad requests": {Settings{Chunk: 100, InFlight: 20}, 0, 60,
			func(_ *Controller, at time.Time, _ int) Sample {
				return Sample{At: at, Live: 20, InHands: 15, InFlightAuto: true, ChunkAuto: true, Demand: true,
					Ended: append(failed("deadline", 1, 100), answered(40, 4000, 12*time.Second))}
			}, func(_ Settings, changes []Change) bool {
				return !slices.ContainsFunc(changes, func(c Change) bool {
					return strings.Contains(c.Reason, "out of time") || strings.Contains(c.Reason, "failed")
				})
			}},
		"a size that kills is left": {Settings{Chunk: 500}, 0, 1, func(_ *Controller, at time.Time, _ int) Sample {
			return Sample{At: at, Live: 10, InHands: 10, Demand: true, ChunkAuto: true,
				Ended: failed("too_many_deliveries", 1, 500)}
		}, func(s Settings, changes []Change) bool { return len(changes) == 1 && s.Chunk == 200 }},
		"paused, nothing is learned, and what was tried is undone": {Settings{Chunk: 500}, 50, 30,
			func(_ *Controller, at time.Time, _ int) Sample {
				return Sample{At: at, Live: 64, Queued: 64, InFlightAuto: true, Demand: true, Paused: true,
					Ended: failed("deadline", 64, 6400)}
			}, func(s Settings, _ []Change) bool { return s.InFlight == 50 && s.Chunk == 500 }},
		"a size that requests do not get to is undone": {Settings{Chunk: 500, InFlight: 8}, 0, 60,
			func(_ *Controller, at time.Time, _ int) Sample {
				return Sample{At: at, Live: 8, InHands: 8, Demand: true, InFlightAuto: true, ChunkAuto: true,
					Ended: []Ended{answered(8, 4000, 8*time.Second)}}
			}, func(s Settings, _ []Change) bool { return s.Chunk == 500 }},
		"a known limit is searched in steps of a third": {Settings{Chunk: 100, InFlight: 100}, 0, 5,
			func(c *Controller, at time.Time, _ int) Sample { return busy(c, at, 0) },
			func(s Settings, _ []Change) bool { return s.InFlight == 130 }},
		"places that are said late do not cut the limit": {Settings{Chunk: 100}, 0, 21,
			func(c *Controller, at time.Time, n int) Sample { return busy(c, at, n/20*4) },
			func(s Settings, _ []Change) bool { return s.InFlight >= 64 }},
		"a rate is learned from what came through before nothing was sent": {Settings{Chunk: 100}, 0, 2,
			func(_ *Controller, at time.Time, n int) Sample {
				if n == 0 {
					return Sample{At: at, Live: 10, InHands: 10, Demand: true, InFlightAuto: true,
						Ended: []Ended{{Requests: 5, Items: 500, Done: 500}}}
				}
				return Sample{At: at, Demand: true, InFlightAuto: true, Paused: true,
					Ended: append(failed("throttled", 20, 2000), Ended{Requests: 1, Items: 100, Done: 100})}
			}, func(s Settings, _ []Change) bool { return s.Rate == 500 }},
	} {
		c := New(tc.begin, nil)
		if tc.trying > 0 {
			c.memory.InFlight.Trial = trial{From: tc.trying, Up: true}
		}
		var changes []Change
		for n := range tc.samples {
			sample := tc.sample(c, time.Unix(int64(1000+n), 0), n)
			sample.Window, sample.Known = time.Second, true
			changes = append(changes, c.Step(sample)...)
		}
		if !tc.right(c.Settings(), changes) {
			t.Errorf("%s: %+v, after %v", name, c.Settings(), changes)
		}
	}
}
