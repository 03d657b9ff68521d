package serve

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// Lane says for whom a slot is taken.
type Lane int

// The lanes, and how many there are.
const (
	Chunks Lane = iota // a chunk of a run, or of a flow in one
	Calls              // someone waits for the answer
	Lanes
)

const (
	// callShare is the share of the slots' time that calls may take from chunks that wait, to one part for these.
	callShare = 3
	// longestDebt is no wait: how much time chunks may be owed by calls before it is their turn, if one of them takes
	// longer than that.
	longestDebt = time.Second
)

// Slots bounds what an endpoint does at once: as many chunks as it has slots, and some calls more. Of those who wait in
// a lane the one who waits longest gets the next slot. Calls come before chunks, until they have had callShare times as
// much time as these, which waited. The size may change while slots are taken: a larger one is of use at once, a
// smaller one as those who have a slot give it back.
//
// It is safe for concurrent use.
type Slots struct {
	reserve int // for calls, beyond the size; negative: usualReserve

	mu      sync.Mutex
	size    atomic.Int64        // written with mu held
	Used    [Lanes]atomic.Int64 // also; above size for a while after the size was lowered
	queued  [Lanes]atomic.Int64 // len of waiting, also
	waiting [Lanes][]chan struct{}
	since   [Lanes]time.Time // when the first of those in waiting began to wait
	owed    time.Duration    // to chunks, since calls have waited without a break
	usual   time.Duration    // that a chunk has a slot, on average
	resized []func()         // called after each change of the size, without mu
}

// usualReserve is how many slots are kept for calls unless Reserve says otherwise.
func usualReserve(size int) int {
	if size >= 4 {
		return 1
	}
	return 0
}

// NewSlots returns so many slots; reserve is how many are kept for calls besides, negative: as usual.
func NewSlots(size, reserve int) *Slots {
	s := &Slots{reserve: reserve}
	s.size.Store(int64(size))
	return s
}

// Waiting is how many of a lane wait for a slot.
func (s *Slots) Waiting(l Lane) int { return int(s.queued[l].Load()) }

// Take waits for a slot. When there is one it is taken even while stop closes, so callers that find stop closed first
// are refused.
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

// Enter queues, and returns what is closed once the caller has a slot, which may be at once.
func (s *Slots) Enter(l Lane) (turn chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	turn = make(chan struct{})
	s.waiting[l] = append(s.waiting[l], turn)
	s.admit()
	return turn
}

// Leave ends a wait. It returns false when the caller has a slot by now.
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

// Give gives a slot back that was taken at since.
func (s *Slots) Give(l Lane, since time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.release(l, since)
}

// release is give. Called with mu held.
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

// owes is what chunks will be owed when the slot is given back that a lane has had since then. Only the time counts in
// which someone of the other lane waited for it. Called with mu held.
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

// Yield gives a slot back when there are more taken than there should be, or others come first, and reports whether it
// did. Work of many parts calls it between them.
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

// bound is what chunks are owed when it is their turn. Called with mu held.
func (s *Slots) bound() time.Duration { return min(max(s.usual, time.Millisecond), longestDebt) }

// admit gives free slots to those who wait. Called with mu held.
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

// count brings to date what follows from who waits. Called with mu held.
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

// next returns whose turn it is, if anybody's. Called with mu held.
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

// resize changes how many slots there are.
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

// Len returns how many slots there are for chunks.
func (s *Slots) Len() int { return int(s.size.Load()) }

// Kept returns how many there are besides, for calls only.
func (s *Slots) Kept() int {
	if s.reserve >= 0 {
		return s.reserve
	}
	return usualReserve(s.Len())
}

// OnResize has f called after each change of the size. f must not wait.
func (s *Slots) OnResize(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resized = append(s.resized, f)
}
