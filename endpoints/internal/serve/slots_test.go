package serve

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func (s *Slots) waiters() int { return s.Waiting(Chunks) + s.Waiting(Calls) }

// takers has n goroutines of a bubble wait for a slot, and returns where each says that it has one.
func takers(s *Slots, n int, stop <-chan struct{}) <-chan struct{} {
	got := make(chan struct{}, n)
	for range n {
		go func() {
			if s.Take(Chunks, stop) {
				got <- struct{}{}
			}
		}()
	}
	synctest.Wait()
	return got
}

func TestSlotsGrowAtOnceAndShrinkAsWorkEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, stop := NewSlots(1, 0), make(chan struct{})
		got := takers(s, 4, stop)
		told := 0
		s.OnResize(func() { told++ })
		s.resize(3)
		synctest.Wait()
		if len(got) != 3 || s.Len() != 3 || told != 1 {
			t.Fatalf("%d of %d slots are taken; told %d times", len(got), s.Len(), told)
		}
		s.resize(1)
		s.Give(Chunks, time.Now())
		testenv.MustSame(t, s.waiters(), 1, "waiters: a slot that is gone")
		if !s.Yield(Chunks, time.Now()) || s.Yield(Chunks, time.Now()) {
			t.Fatal("one of two had to yield")
		}
		s.Give(Chunks, time.Now())
		synctest.Wait()
		if n := s.Used[Chunks].Load(); n != 1 || len(got) != 4 {
			t.Errorf("%d slots are taken", n)
		}
		refused := takers(s, 1, stop)
		close(stop)
		synctest.Wait()
		s.Give(Chunks, time.Now())
		testenv.Same(t, len(refused)+len(takers(s, 1, stop))+s.waiters(), 0, "a slot was taken after the end")
	})
}

func TestCallsComeBeforeChunks(t *testing.T) {
	t.Parallel()
	ready := func(c <-chan struct{}) bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	s := NewSlots(1, 0)
	<-s.Enter(Chunks)
	chunk, call := s.Enter(Chunks), s.Enter(Calls)
	s.Give(Chunks, time.Now())
	if !ready(call) {
		t.Fatal("the call that came later has no slot")
	}
	s.Give(Calls, time.Now())
	if !ready(chunk) {
		t.Fatal("the chunk has no slot, and nothing else wants it")
	}
	s = NewSlots(2, 1)
	<-s.Enter(Chunks)
	<-s.Enter(Chunks)
	third := s.Enter(Chunks)
	if call := s.Enter(Calls); ready(third) || !ready(call) || !s.Leave(Chunks, third) {
		t.Error("the slot that is kept is not for calls")
	}
	for size, want := range map[int]int{1: 0, 3: 0, 4: 1, 64: 1} {
		testenv.Same(t, NewSlots(size, -1).Kept(), want, "kept of %d slots", size)
	}
}

// TestWaitingCallsLeaveChunksTheirShare counts the time that each has a slot while both want all of it.
func TestWaitingCallsLeaveChunksTheirShare(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := NewSlots(2, 0)
		stop := make(chan struct{})
		var had [Lanes]atomic.Int64
		want := func(l Lane, n int, each time.Duration) {
			for range n {
				go func() {
					for s.Take(l, stop) {
						since := time.Now()
						<-time.After(each)
						had[l].Add(int64(time.Since(since)))
						s.Give(l, since)
					}
				}()
			}
		}
		want(Calls, 50, time.Millisecond)
		want(Chunks, 4, 20*time.Millisecond)
		<-time.After(2 * time.Second)
		close(stop)
		<-time.After(time.Second) // until all have given their slots back
		chunks, calls := float64(had[Chunks].Load()), float64(had[Calls].Load())
		if share := chunks / (chunks + calls); share < 0.15 || share > 0.5 {
			t.Errorf("chunks had %.2f of the time; want about a quarter", share)
		}
	})
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
		t.Errorf("at most %d concurrently; %d taken, %d waiting at the end", most.Load(), s.Used[Chunks].Load(), s.waiters())
	}
}

// visit has a visitor of a bubble enter, and returns where its stay comes once it is in.
func visit(s *Suspects, root uuid.UUID, suspect bool) <-chan Stay {
	in := make(chan Stay, 1)
	go func() {
		if stay, ok := s.Enter(root, suspect, nil); ok {
			in <- stay
		}
	}()
	synctest.Wait()
	return in
}

func TestSuspectsHaveTheProcessForThemselves(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := NewSuspects()
		a, b, c := uuid.New(), uuid.New(), uuid.New()
		first, second := <-visit(s, a, false), <-visit(s, a, false)
		suspect, later := visit(s, b, true), visit(s, c, false)
		kin := <-visit(s, a, false) // what the first may wait for
		first.End()
		kin.End()
		synctest.Wait()
		testenv.MustSame(t, len(suspect)+len(later), 0, "one was let in beside the second, or before the suspect")
		second.End()
		alone := <-suspect
		synctest.Wait()
		if !alone.Alone || alone.Late || len(later) != 0 {
			t.Fatalf("the suspect is not alone: %+v", alone)
		}
		kin = <-visit(s, b, false)
		kin.End()
		alone.End()
		last := <-later
		last.End()
		testenv.Same(t, len(s.running)+len(s.alone)+s.count+len(s.Queue), 0, "something is left: %+v", s)
	})
}

func TestSuspectsDoNotWaitForEver(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := NewSuspects()
		busy := <-visit(s, uuid.New(), false)
		suspect := <-visit(s, uuid.New(), true)
		if suspect.Alone || !suspect.Late {
			t.Errorf("the suspect is %+v", suspect)
		}
		suspect.End()
		busy.End()
		alone := <-visit(s, uuid.New(), true)
		if other := <-visit(s, uuid.New(), false); !other.Late || !alone.Alone {
			t.Errorf("the other is %+v, the suspect %+v", other, alone)
		}
	})
}
