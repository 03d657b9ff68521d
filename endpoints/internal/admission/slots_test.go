package admission

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// waiters returns how many wait for a slot.
func (s *Slots) waiters() int { return s.Waiting(Chunks) + s.Waiting(Calls) }

// takers has n goroutines wait for a slot, and returns where each says that it has one.
func takers(t *testing.T, s *Slots, n int) <-chan struct{} {
	t.Helper()
	got := make(chan struct{}, n)
	var all sync.WaitGroup
	stop := make(chan struct{})
	t.Cleanup(func() { close(stop); all.Wait() })
	before := s.waiters()
	for range n {
		all.Go(func() {
			if s.Take(Chunks, stop) {
				got <- struct{}{}
			}
		})
	}
	eventually(t, "all have a slot or wait", func() bool { return s.waiters()-before+len(got) == n })
	return got
}

func TestSlotsGrowAtOnce(t *testing.T) {
	t.Parallel()
	s := NewSlots(1, 0)
	got := takers(t, s, 3)
	if len(got) != 1 {
		t.Fatalf("%d of 1 slot are taken", len(got))
	}
	told := 0
	s.OnResize(func() { told++ })
	s.resize(2)
	eventually(t, "a second one has a slot", func() bool { return len(got) == 2 })
	if s.Len() != 2 || told != 1 {
		t.Errorf("%d slots; told %d times", s.Len(), told)
	}
}

func TestSlotsShrinkAsWorkEnds(t *testing.T) {
	t.Parallel()
	s := NewSlots(3, 0)
	takers(t, s, 3)
	got := takers(t, s, 1)
	s.resize(1)
	s.Give(Chunks, time.Now())
	if s.waiters() != 1 {
		t.Fatal("a slot that is no more was taken")
	}
	if !s.Yield(Chunks, time.Now()) || s.Yield(Chunks, time.Now()) {
		t.Fatal("one of two had to yield")
	}
	s.Give(Chunks, time.Now())
	await(t, "slot", got)
	if n := s.Used[Chunks].Load(); n != 1 {
		t.Errorf("%d slots are taken", n)
	}
}

func TestSlotsRefuseThoseWhoStop(t *testing.T) {
	t.Parallel()
	s := NewSlots(1, 0)
	stopped := make(chan struct{})
	close(stopped)
	if s.Take(Chunks, stopped) {
		t.Error("a free slot was taken after the end")
	}
	if !s.Take(Chunks, nil) {
		t.Fatal("no slot")
	}
	stop, refused := make(chan struct{}), make(chan bool)
	go func() { refused <- !s.Take(Chunks, stop) }()
	eventually(t, "it waits", func() bool { return s.waiters() == 1 })
	close(stop)
	if !await(t, "end of the wait", refused) || s.waiters() != 0 {
		t.Error("a slot was had that is not there")
	}
}

// TestSlotsAreNeverPassed changes the size all the time and counts what is at work.
func TestSlotsAreNeverPassed(t *testing.T) {
	t.Parallel()
	s := NewSlots(4, 0)
	var busy, most atomic.Int64
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for i := range 2000 {
				if !s.Take(Chunks, nil) {
					t.Error("refused")
					return
				}
				if n := busy.Add(1); n > most.Load() {
					most.Store(n)
				}
				if i%64 == 0 {
					s.resize(1 + i/64%6)
				}
				busy.Add(-1)
				if !s.Yield(Chunks, time.Now()) {
					s.Give(Chunks, time.Now())
				}
			}
		})
	}
	all.Wait()
	if most.Load() > 6 || s.Used[Chunks].Load() != 0 || s.waiters() != 0 {
		t.Errorf("at most %d at once; %d taken, %d waiting at the end", most.Load(), s.Used[Chunks].Load(), s.waiters())
	}
}
