package autotune

import (
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

// Some requests that run out of time are bad ones; they are no reason to slow down.
func TestAFewTimeOutsChangeNothing(t *testing.T) {
	t.Parallel()
	c := New(Settings{Chunk: 100, InFlight: 20}, nil)
	at := time.Unix(1000, 0)
	for range 60 {
		at = at.Add(time.Second)
		changes := c.Step(Sample{At: at, Window: time.Second, Live: 20, Known: true, InHands: 15, Demand: true,
			InFlightAuto: true,
			ChunkAuto:    true, Ended: []Ended{
				{Requests: 40, Items: 4000, Done: 4000, Timed: 40, Took: 12 * time.Second},
				{Requests: 1, Items: 100, Code: "deadline"},
			}})
		for _, change := range changes {
			if strings.Contains(change.Reason, "out of time") || strings.Contains(change.Reason, "failed") {
				t.Errorf("%v", change)
			}
		}
	}
}

// A size that no one survives is left at the first failure.
func TestASizeThatKillsIsLeftAtOnce(t *testing.T) {
	t.Parallel()
	c := New(Settings{Chunk: 500}, nil)
	changes := c.Step(Sample{At: time.Unix(1000, 0), Window: time.Second, Live: 10, InHands: 10, Known: true,
		Demand: true, ChunkAuto: true, Ended: []Ended{{Requests: 1, Items: 500, Code: "too_many_deliveries"}}})
	if len(changes) != 1 || c.Settings().Chunk != 200 {
		t.Fatalf("%v; chunk %d", changes, c.Settings().Chunk)
	}
}

// The wanted time of a request is kept, whatever is faster.
func TestAChunkStaysWithinItsTime(t *testing.T) {
	t.Parallel()
	m := serviceModel{instances: 2, concurrency: 4,
		took: func(n, _, _ int) float64 { return 0.5 + 0.01*float64(n) }}
	c := New(Settings{Chunk: 500}, nil)
	s := newSimulation(m, c.Settings(), 1)
	s.chunkAuto, s.chunkTime = true, 2*time.Second
	s.run(c, 120)
	if got := c.Settings().Chunk; got != 100 {
		t.Errorf("chunk %d; 100 take 1.5 s, and 2 s are allowed", got)
	}
}

// While nothing can be learned nothing changes, and what was being tried is taken back.
func TestAPausedControllerDoesNothing(t *testing.T) {
	t.Parallel()
	c := New(Settings{Chunk: 500}, nil)
	c.memory.InFlight.Trial = trial{From: 50, Up: true}
	at := time.Unix(1000, 0)
	for range 30 {
		at = at.Add(time.Second)
		c.Step(Sample{At: at, Window: time.Second, Live: 64, Queued: 64, Known: true, InFlightAuto: true, Demand: true,
			Paused: true, Ended: []Ended{{Requests: 64, Items: 6400, Code: "deadline"}}})
	}
	if got := c.Settings(); got.InFlight != 50 || got.Chunk != 500 {
		t.Errorf("%+v", got)
	}
}

// A service that does not say how long it works is paced by what it holds.
func TestAServiceThatDoesNotSayHowLongItTakes(t *testing.T) {
	t.Parallel()
	m := serviceModel{instances: 2, concurrency: 4, took: constant(1), silent: true}
	best, _ := sweep(m, steps(100), 50)
	c := New(Settings{Chunk: 100}, nil)
	s := newSimulation(m, c.Settings(), 1)
	changes := s.run(c, 260)
	got, wait := s.rate(60, 260), s.longestWait(60)
	if got < 0.9*best || wait > 3 {
		t.Errorf("%.0f items/s of %.0f, waits up to %.1f s", got, best, wait)
		logAll(t, changes)
	}
}

// A successor goes on where the one before stopped.
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

// A size that requests do not get to, for their bytes or the size of their run, is taken back.
func TestASizeThatIsNotReachedIsTakenBack(t *testing.T) {
	t.Parallel()
	c := New(Settings{Chunk: 500, InFlight: 8}, nil)
	at := time.Unix(1000, 0)
	for range 60 {
		at = at.Add(time.Second)
		c.Step(Sample{At: at, Window: time.Second, Live: 8, Known: true, InHands: 8, Demand: true, InFlightAuto: true,
			ChunkAuto: true, Ended: []Ended{{Requests: 8, Items: 4000, Done: 4000, Timed: 8, Took: 8 * time.Second}}})
	}
	if got := c.Settings().Chunk; got != 500 {
		t.Errorf("chunk %d; no request has more than 500 items", got)
	}
}

// busy is a sample of an endpoint that answers n requests of 100 items in a second each.
func busy(c *Controller, at time.Time, places int) Sample {
	n := c.Settings().InFlight
	return Sample{At: at, Window: time.Second, Live: n, Known: true, InHands: n, Places: places, Demand: true,
		InFlightAuto: true, Ended: []Ended{{Requests: n, Items: 100 * n, Done: 100 * n, Timed: n,
			Took: time.Duration(n) * 900 * time.Millisecond, Clocked: n, Stay: time.Duration(n) * time.Second}}}
}

// Where a limit has been found before, steps are a third of it, and not one request.
func TestAKnownLimitIsSearchedInShortSteps(t *testing.T) {
	t.Parallel()
	c, at := New(Settings{Chunk: 100, InFlight: 100}, nil), time.Unix(1000, 0)
	for range 5 {
		at = at.Add(time.Second)
		c.Step(busy(c, at, 0))
	}
	if got := c.Settings().InFlight; got != 130 {
		t.Errorf("%d in flight after the first step up from 100", got)
	}
}

// What was found while services said nothing is not given up once they say how many requests they work on.
func TestLatePlacesDoNotCutTheLimit(t *testing.T) {
	t.Parallel()
	c, at := New(Settings{Chunk: 100}, nil), time.Unix(1000, 0)
	for range 20 {
		at = at.Add(time.Second)
		c.Step(busy(c, at, 0))
	}
	before := c.Settings().InFlight
	c.Step(busy(c, at.Add(time.Second), 4))
	if got := c.Settings().InFlight; before < 64 || got < before {
		t.Errorf("%d in flight before, %d after services said that they work on 4", before, got)
	}
}

// While the streams elect a leader nothing is answered, and what waited comes all at once afterwards. That says nothing
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
			for seed := range uint64(5) {
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

// Refusals may be why nothing is sent any more; the rate is learned anyway, from what came through before.
func TestARateIsLearnedWhileNothingIsSent(t *testing.T) {
	t.Parallel()
	c := New(Settings{Chunk: 100}, nil)
	at := time.Unix(1000, 0)
	c.Step(Sample{At: at, Window: time.Second, Live: 10, Known: true, InHands: 10, Demand: true, InFlightAuto: true,
		Ended: []Ended{{Requests: 5, Items: 500, Done: 500}}})
	changes := c.Step(Sample{At: at.Add(time.Second), Window: time.Second, Known: true, Demand: true, InFlightAuto: true,
		Paused: true, Ended: []Ended{{Requests: 20, Items: 2000, Code: "throttled"}, {Requests: 1, Items: 100, Done: 100}}})
	if got := c.Settings(); got.Rate != 500 || len(changes) != 1 {
		t.Errorf("%+v, %v; 500 items/s came through", got, changes)
	}
}
