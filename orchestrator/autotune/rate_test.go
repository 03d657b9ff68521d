package autotune

import (
	"testing"
	"time"
)

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
					for _, change := range changes {
						t.Log(change)
					}
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
		for _, change := range changes {
			t.Log(change)
		}
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
