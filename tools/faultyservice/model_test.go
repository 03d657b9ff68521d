package faultyservice

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// Two chunks on one server take twice as long while both are there.
func TestClockIsShared(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newClock((&Load{Servers: 1}).slowdown)
		begun := time.Now()
		var ends [2]time.Duration
		var both sync.WaitGroup
		both.Go(func() {
			if err := c.work(t.Context(), time.Second); err != nil {
				t.Error(err)
			}
			ends[0] = time.Since(begun)
		})
		synctest.Wait()
		time.Sleep(500 * time.Millisecond) //nolint:forbidigo // the bubble's own time
		both.Go(func() {
			if err := c.work(t.Context(), time.Second); err != nil {
				t.Error(err)
			}
			ends[1] = time.Since(begun)
		})
		both.Wait()
		// Alone for 0.5 s, then half as fast until the first has its second, then alone again.
		for i, want := range []time.Duration{1500 * time.Millisecond, 2 * time.Second} {
			if off := (ends[i] - want).Abs(); off > time.Microsecond {
				t.Errorf("chunk %d ended after %s; want %s", i, ends[i], want)
			}
		}
	})
}

func TestPeakOfALoad(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		load   Load
		rate   float64
		atOnce int
	}{
		"one at a time":       {Load{PerItem: time.Millisecond, Servers: 1}, 1000, 1},
		"eight servers":       {Load{PerChunk: time.Second, Servers: 8}, 800, 8},
		"best at ten at once": {Load{PerChunk: time.Second, Best: 10}, 100 * 10 / 1.9, 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rate, atOnce := tc.load.Peak(100, 64)
			if atOnce != tc.atOnce || rate < tc.rate*0.999 || rate > tc.rate*1.001 {
				t.Errorf("peak of %g items/s at %d; want %g at %d", rate, atOnce, tc.rate, tc.atOnce)
			}
		})
	}
}

func TestBucket(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBucket(&Throttle{PerSecond: 100, Burst: 50})
		if n := b.take(80); n != 50 {
			t.Errorf("%d passed at first; want the burst", n)
		}
		time.Sleep(200 * time.Millisecond) //nolint:forbidigo // the bubble's own time
		if n := b.take(80); n != 20 {
			t.Errorf("%d passed after 200 ms; want 20", n)
		}
		time.Sleep(time.Hour) //nolint:forbidigo // as above
		if n := b.take(80); n != 50 {
			t.Errorf("%d passed after an hour; want the burst", n)
		}
	})
}

func TestLedgerIsReadBack(t *testing.T) {
	t.Parallel()
	var file bytes.Buffer
	run := uuid.New()
	l := NewLedger(&file)
	l.add(Entry{Run: run, Generation: 1, Ordinals: []int{1, 2}, Fault: FaultPoison})
	l.add(Entry{Run: run, Generation: 1, Ordinals: []int{2}})
	back := testenv.Must(ReadLedger(strings.NewReader(file.String() + `{"run":"0`)))(t) // a process died here
	if times := back.Times(run, 1); times[1] != 1 || times[2] != 2 || back.Fired(FaultPoison) != 1 {
		t.Errorf("read back %v, %d times poison", times, back.Fired(FaultPoison))
	}
	if l.Err() != nil || len(back.Entries()) != 2 {
		t.Errorf("error %v, %d entries", l.Err(), len(back.Entries()))
	}
}

func TestConfigIsValidated(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]Config{
		"Endpoint":     {},
		"Poison.Way":   {Endpoint: "e", Poison: &Poison{Way: "odd"}},
		"Memory needs": {Endpoint: "e", Memory: &Memory{Way: WayError}},
		"PerSecond":    {Endpoint: "e", Throttle: &Throttle{}},
		"Outage needs": {Endpoint: "e", Outage: &Outage{Way: WayError}},
		"Load has":     {Endpoint: "e", Load: &Load{Best: -1}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if _, err := New(nil, cfg); err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("error %v; want one about %s", err, name)
			}
		})
	}
}
