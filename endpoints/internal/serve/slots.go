package serve

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Lane is the class of work that a slot is for.
type Lane int

// The lanes and their number.
const (
	Chunks Lane = iota // a chunk of a run, or of a flow in one
	Calls              // a caller waits
	Lanes
)

const (
	// callShare is how many times the slot time of waiting chunks calls may take.
	callShare = 3
	// longestDebt caps the time that calls may owe to chunks; usually the bound is a chunk's average time.
	longestDebt = time.Second
)

// Slots bounds an endpoint's concurrency: one chunk per slot, plus reserved slots for calls. Each lane is first in,
// first out. Calls go first until they have had callShare times the time of waiting chunks. The size may change while
// slots are taken: growth applies immediately, shrinking as slots are released.
//
// It is safe for concurrent use.
type Slots struct {
	reserve int // extra slots for calls; negative: by the size

	mu      sync.Mutex
	size    atomic.Int64        // written with mu held
	Used    [Lanes]atomic.Int64 // written with mu held; may exceed size after it was lowered
	queued  [Lanes]atomic.Int64 // len(waiting), written with mu held
	waiting [Lanes][]chan struct{}
	since   [Lanes]time.Time // when waiting last became non-empty
	owed    time.Duration    // to chunks, while calls keep waiting
	usual   time.Duration    // average time that a chunk holds a slot
	resized []func()         // called without mu after each resize
}

// NewSlots returns size slots and reserve extra ones for calls; negative means the usual reserve, by the size.
func NewSlots(size, reserve int) *Slots {
	s := &Slots{reserve: reserve}
	s.size.Store(int64(size))
	return s
}

// Waiting returns how many wait in a lane.
func (s *Slots) Waiting(l Lane) int { return int(s.queued[l].Load()) }

// Take waits for a slot and returns false once stop is closed. A slot granted while stop closes is kept.
func (s *Slots) Take(l Lane, stop <-chan struct{}) bool {
	select {
	case <-stop:
		return false
	default:
	}
	turn := s.Enter(l)
	select {
	case <-turn:
		return true
	case <-stop:
		return !s.Leave(l, turn)
	}
}

// Enter queues for a slot. turn is closed once the caller has it.
func (s *Slots) Enter(l Lane) (turn chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	turn = make(chan struct{})
	s.waiting[l] = append(s.waiting[l], turn)
	s.admit()
	return turn
}

// Leave ends a wait. It returns false if the caller already has a slot.
func (s *Slots) Leave(l Lane, turn chan struct{}) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.Index(s.waiting[l], turn)
	if i < 0 {
		return false
	}
	s.waiting[l] = slices.Delete(s.waiting[l], i, i+1)
	s.count()
	return true
}

// Give releases a slot taken at since.
func (s *Slots) Give(l Lane, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release(l, since)
}

// release is Give with mu held.
func (s *Slots) release(l Lane, since time.Time) {
	if l == Chunks {
		s.usual += (time.Since(since) - s.usual) / 4
	}
	if len(s.waiting[Calls]) == 0 {
		s.owed = 0
	} else {
		s.owed = s.owes(l, since)
	}
	s.Used[l].Add(-1)
	s.admit()
}

// owes returns the debt to chunks after a lane releases a slot held since then. Only time in which the other lane
// waited counts. mu must be held.
func (s *Slots) owes(l Lane, since time.Time) time.Duration {
	other := s.since[1-l]
	switch {
	case other.IsZero():
		return s.owed
	case other.After(since):
		since = other
	}
	if l == Chunks {
		return s.owed - time.Since(since)
	}
	return s.owed + time.Since(since)/callShare
}

// Yield releases the slot if too many are taken or the other lane is due, and reports whether it did. Work of many
// parts calls it between them.
func (s *Slots) Yield(l Lane, since time.Time) bool {
	if s.queued[1-l].Load() == 0 && s.Used[Chunks].Load() <= s.size.Load() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	chunksTurn := s.owes(l, since) >= s.bound()
	excess := len(s.waiting[Chunks]) > 0 && chunksTurn
	if l == Chunks {
		excess = s.Used[l].Load() > s.size.Load() || len(s.waiting[Calls]) > 0 && !chunksTurn
	}
	if excess {
		s.release(l, since)
	}
	return excess
}

// bound is the debt at which a chunk goes next. mu must be held.
func (s *Slots) bound() time.Duration { return min(max(s.usual, time.Millisecond), longestDebt) }

// admit grants free slots. mu must be held.
func (s *Slots) admit() {
	for {
		l, free := s.next()
		if !free {
			break
		}
		s.Used[l].Add(1)
		close(s.waiting[l][0])
		s.waiting[l] = slices.Delete(s.waiting[l], 0, 1)
	}
	s.count()
}

// count updates what derives from waiting. mu must be held.
func (s *Slots) count() {
	for l := range s.waiting {
		s.queued[l].Store(int64(len(s.waiting[l])))
		switch {
		case len(s.waiting[l]) == 0:
			s.since[l] = time.Time{}
		case s.since[l].IsZero():
			s.since[l] = time.Now()
		}
	}
}

// next returns the lane that gets the next slot, if one is free. mu must be held.
func (s *Slots) next() (l Lane, free bool) {
	chunks, size := s.Used[Chunks].Load(), s.size.Load()
	free = chunks+s.Used[Calls].Load() < size+int64(s.Kept())
	chunk := free && chunks < size && len(s.waiting[Chunks]) > 0
	call := free && len(s.waiting[Calls]) > 0
	if chunk && (!call || s.owed >= s.bound()) {
		return Chunks, true
	}
	return Calls, call
}

func (s *Slots) resize(size int) {
	s.mu.Lock()
	s.size.Store(int64(size))
	s.admit()
	resized := slices.Clone(s.resized)
	s.mu.Unlock()
	for _, f := range resized {
		f()
	}
}

// Len returns the number of slots for chunks.
func (s *Slots) Len() int { return int(s.size.Load()) }

// Kept returns the number of extra slots for calls.
func (s *Slots) Kept() int {
	if s.reserve >= 0 {
		return s.reserve
	}
	if s.Len() >= 4 {
		return 1
	}
	return 0
}

// OnResize registers f to be called after each resize. f must not block.
func (s *Slots) OnResize(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resized = append(s.resized, f)
}
