package scale

import (
	"math"
	"reflect"
	"testing"
)

// plain are round costs, so that a test can calculate what has to come out.
var plain = Costs{
	DatabaseIntake: Cost{Item: 2}, DatabaseWork: Cost{Item: 4, Chunk: 100}, NodeIntake: Cost{Item: 1},
	NodeWork: Cost{Item: 1, Chunk: 50}, NATSWork: Cost{Item: 0.1}, ServiceWork: Cost{Item: 2},
	WALIntake: Cost{Item: 300, Byte: 1}, WALWork: Cost{Item: 200, Byte: 1}, DiskIntake: Cost{Item: 100, Byte: 1},
	DiskWork: Cost{Item: 100, Byte: 1}, Wire: Cost{Item: 20, Byte: 4},
}

func site() Site {
	return Site{Databases: 1, DatabaseCores: 8, Fsync: 0.1, Disk: 10_000, Connections: 200, Nodes: 4, NodeCores: 8,
		NATSCores: 16, Network: 10_000, Replicas: 1, ServiceCores: 64}
}

func job() Job { return Job{Items: 1_000_000, Steps: 1, Bytes: 100, Chunk: 500, InFlight: 256} }

func simulate(t *testing.T, s Site, j Job) *Result {
	t.Helper()
	r, err := Simulate(plain, s, j, 1)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Each limit, where it is the only one, gives what can be calculated by hand, and is named.
func TestEachLimitIsFound(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		limit   string
		set     func(*Site, *Job)
		seconds float64
	}{
		// 2 µs to load, 4 and a 500th of 100 to work.
		{"database processor", func(s *Site, _ *Job) { s.DatabaseCores = 1 }, 6.2},
		// 500 bytes of WAL and 200 of data an item, and its payload twice in each: 40 MB/s.
		{"database disk", func(s *Site, _ *Job) { s.Disk = 40 }, 700*1e6/40e6 + 2*1e8/40e6},
		{"service", func(s *Site, j *Job) { s.ServiceCores, j.Service = 10, 0.1 }, 1e6 * 102e-6 / 10},
		{"NATS network", func(s *Site, _ *Job) { s.Network, s.Replicas = 100, 3 }, 420 * 3 * 1e6 / 100e6},
		{"the machine's processor", func(s *Site, _ *Job) { s.OneMachine = 2 }, (2 + 4.2 + 1 + 1.1 + 0.1 + 2) / 2},
	} {
		t.Run(tc.limit, func(t *testing.T) {
			t.Parallel()
			s, j := site(), job()
			tc.set(&s, &j)
			r := simulate(t, s, j)
			if r.Limit() != tc.limit {
				t.Errorf("the limit is %s: %+v", r.Limit(), r.Uses)
			}
			if r.Seconds < tc.seconds*0.98 || r.Seconds > tc.seconds*1.25 {
				t.Errorf("it takes %.2f s; calculated %.2f", r.Seconds, tc.seconds)
			}
		})
	}
}

// Two recorders of a node commit sixteen replies each, one transaction after the other: where each waits a second for
// the disk or for the network, no processor is the limit.
func TestSlowCommitsAreWaitedFor(t *testing.T) {
	t.Parallel()
	s, j := site(), job()
	s.Nodes, s.Trip = 1, 100
	r := simulate(t, s, j)
	batches := 1e6 / 500 / recordReplies / recorders
	least := batches * (recordTrips + settleTrips) * 0.1
	if r.Limit() != waiting || r.Seconds < least || r.Seconds > 4*least {
		t.Errorf("100 ms away it takes %.2f s, at least %.2f, by %s", r.Seconds, least, r.Limit())
	}
	s.Nodes = 4
	if four := simulate(t, s, j); four.Seconds > r.Seconds*0.7 {
		t.Errorf("four nodes take %.2f s, one %.2f", four.Seconds, r.Seconds)
	}
	s.Trip, s.Fsync = 0, 100
	if r := simulate(t, s, j); r.Uses[0].Name != "database disk" || r.Flushes > 10.1 {
		t.Errorf("with fsyncs of 100 ms there are %.1f a second, and the busiest is %+v", r.Flushes, r.Uses[0])
	}
}

// Installations share nothing but NATS and services: so many databases do so many times as much until one of these is
// used up. The largest part is waited for.
func TestDatabasesAddUp(t *testing.T) {
	t.Parallel()
	s, j := site(), job()
	s.DatabaseCores, j.Items = 2, 4_000_000
	one := simulate(t, s, j)
	s.Databases = 4
	four := simulate(t, s, j)
	if ratio := one.Seconds / four.Seconds; ratio < 3.6 || ratio > 4.4 {
		t.Errorf("four databases are %.2f times as fast as one", ratio)
	}
	j.Skew = 1
	if skewed := simulate(t, s, j); skewed.Seconds < four.Seconds*1.8 {
		t.Errorf("with twice as much for one of them it takes %.2f s, evenly %.2f", skewed.Seconds, four.Seconds)
	}
	j.Skew, s.ServiceCores, j.Service = 0, 4, 0.01
	if shared := simulate(t, s, j); shared.Limit() != "service" {
		t.Errorf("the limit of a service that all share is %s", shared.Limit())
	}
}

// The same seed gives the same, another one something near.
func TestSeeds(t *testing.T) {
	t.Parallel()
	s, j := site(), job()
	s.Slow = 0.5
	first, again := simulate(t, s, j), simulate(t, s, j)
	if !reflect.DeepEqual(first, again) {
		t.Errorf("the same seed gives %+v and %+v", first, again)
	}
	other, err := Simulate(plain, s, j, 2)
	if err != nil || other.Seconds == first.Seconds || math.Abs(other.Seconds/first.Seconds-1) > 0.1 {
		t.Errorf("other seeds give %v and %v s (%v)", first.Seconds, other.Seconds, err)
	}
}

func TestMoreItemsTakeLonger(t *testing.T) {
	t.Parallel()
	before := 0.0
	for _, items := range []int{1, 499, 8193, 100_000, 3_000_000} {
		j := job()
		j.Items = items
		r := simulate(t, site(), j)
		if r.Seconds <= before {
			t.Errorf("%d items take %g s, fewer took %g", items, r.Seconds, before)
		}
		before = r.Seconds
	}
}

func TestSimulateRefuses(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*Site, *Job){
		"no node": func(s *Site, _ *Job) { s.Nodes = 0 }, "half a core": func(s *Site, _ *Job) { s.DatabaseCores = 0.5 },
		"no disk": func(s *Site, _ *Job) { s.Disk = 0 }, "few connections": func(s *Site, _ *Job) { s.Connections = 5 },
		"no items": func(_ *Site, j *Job) { j.Items = 0 }, "large chunks": func(_ *Site, j *Job) { j.Chunk = 9000 },
	} {
		s, j := site(), job()
		set(&s, &j)
		if _, err := Simulate(plain, s, j, 1); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestCostsOnRecord(t *testing.T) {
	t.Parallel()
	if c, err := OnRecord(); err != nil || c.Measured == "" {
		t.Errorf("what is on record cannot be read, or does not say how it was measured: %v", err)
	}
	for _, raw := range []string{"", "{}", `{"database_work": {"item": 1}}`} {
		if _, err := ParseCosts([]byte(raw)); err == nil {
			t.Errorf("costs of %q are taken", raw)
		}
	}
}
