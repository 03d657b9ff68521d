package endpoints

import (
	"slices"
	"sync"
	"sync/atomic"
)

// slots bounds what an endpoint does at once. Whoever waits longest gets the next one. The size may change while slots
// are taken: a larger one is of use at once, a smaller one as those who have a slot give it back.
//
// It is safe for concurrent use.
type slots struct {
	mu      sync.Mutex
	size    atomic.Int64 // written with mu held
	used    atomic.Int64 // likewise; above size for a while after the size was lowered
	waiting []chan struct{}
	resized []func() // called after each change, without mu
}

func newSlots(size int) *slots {
	s := &slots{}
	s.size.Store(int64(size))
	return s
}

// take waits for a slot. When there is one it is taken even while stop closes, so callers that find stop closed first
// are refused.
func (s *slots) take(stop <-chan struct{}) bool {
	select {
	case <-stop:
		return false
	default:
	}
	turn := s.enter()
	if turn == nil {
		return true
	}
	select {
	case <-turn:
		return true
	case <-stop:
		return !s.leave(turn)
	}
}

// enter takes a slot, or returns what will be closed once the caller has one.
func (s *slots) enter() (turn chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used.Load() < s.size.Load() {
		s.used.Add(1)
		return nil
	}
	turn = make(chan struct{})
	s.waiting = append(s.waiting, turn)
	return turn
}

// leave ends a wait. It returns false when the caller has a slot by now.
func (s *slots) leave(turn chan struct{}) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.waiting, turn)
	if i < 0 {
		return false
	}
	s.waiting = slices.Delete(s.waiting, i, i+1)
	return true
}

// give gives a slot back.
func (s *slots) give() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.used.Add(-1)
	s.admit()
}

// yield gives a slot back when there are more taken than there should be, and reports whether it did. Work of many
// parts calls it between them.
func (s *slots) yield() bool {
	if s.used.Load() <= s.size.Load() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used.Load() <= s.size.Load() { // others were first
		return false
	}
	s.used.Add(-1)
	return true
}

// admit gives free slots to those who wait. Called with mu held.
func (s *slots) admit() {
	n := 0
	for ; n < len(s.waiting) && s.used.Load() < s.size.Load(); n++ {
		s.used.Add(1)
		close(s.waiting[n])
	}
	s.waiting = slices.Delete(s.waiting, 0, n)
}

// resize changes how many slots there are.
func (s *slots) resize(size int) {
	s.mu.Lock()
	s.size.Store(int64(size))
	s.admit()
	resized := slices.Clone(s.resized)
	s.mu.Unlock()
	for _, f := range resized {
		f()
	}
}

// len returns how many slots there are.
func (s *slots) len() int { return int(s.size.Load()) }

// onResize has f called after each change of the size. f must not wait.
func (s *slots) onResize(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resized = append(s.resized, f)
}
