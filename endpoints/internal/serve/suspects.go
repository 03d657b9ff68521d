package serve

import (
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
)

const (
	// isolationTimeout is how long a suspect waits to be alone, and others for a suspect, while no handler ends. It
	// resolves deadlocks, such as a handler that waits for its own process.
	isolationTimeout = 30 * time.Second
)

// Suspects isolates requests that may kill their process from all others in it, across endpoints, so that only the
// culprit is blamed. A suspect waits until it is alone, and later requests wait for it. Requests for the same root
// slice do not wait for one another, since one may need the other's answer.
//
// It is safe for concurrent use.
type Suspects struct {
	Timeout time.Duration

	Mu      sync.Mutex
	running map[uuid.UUID]int // running handlers by root slice
	count   int               // running handlers
	alone   map[uuid.UUID]int // running suspects by root slice
	Queue   []*visitor        // waiting suspects
	changed chan struct{}     // closed to wake waiters; nil without waiters
}

type visitor struct {
	root    uuid.UUID // root slice
	suspect bool
}

// Stay is an admitted visitor. End must be called.
type Stay struct {
	in *Suspects
	visitor
	Alone bool // a suspect alone in the process
	Late  bool // admitted after the timeout
}

// NewSuspects returns an empty Suspects.
func NewSuspects() *Suspects {
	return &Suspects{Timeout: isolationTimeout, running: map[uuid.UUID]int{}, alone: map[uuid.UUID]int{}}
}

// Enter waits until a visitor may be handled, or no handler ended for Timeout. It returns false if stop was
// closed first.
func (s *Suspects) Enter(root uuid.UUID, suspect bool, stop <-chan struct{}) (Stay, bool) {
	v := &visitor{root, suspect}
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if suspect {
		s.Queue = append(s.Queue, v)
		defer s.unqueue(v)
	}
	if s.welcome(v) {
		return s.admit(v, suspect, false), true
	}
	patience := time.NewTimer(s.Timeout)
	defer patience.Stop()
	for !s.welcome(v) {
		changed := s.change()
		s.Mu.Unlock()
		over, stopped := false, false
		select {
		case <-changed:
			patience.Reset(s.Timeout)
		case <-patience.C:
			over = true
		case <-stop:
			stopped = true
		}
		s.Mu.Lock()
		switch {
		case stopped:
			return Stay{}, false
		case over:
			return s.admit(v, false, true), true
		}
	}
	return s.admit(v, suspect, false), true
}

// welcome reports whether a visitor may be handled now. Mu must be held.
func (s *Suspects) welcome(v *visitor) bool {
	kin := s.running[v.root]
	switch {
	case v.suspect:
		return s.Queue[0] == v && kin == s.count
	case len(s.alone) > 0:
		return s.alone[v.root] > 0
	default:
		return len(s.Queue) == 0 || kin > 0
	}
}

// admit admits a visitor. Mu must be held.
func (s *Suspects) admit(v *visitor, alone, late bool) Stay {
	s.count++
	s.running[v.root]++
	if alone {
		s.alone[v.root]++
	}
	return Stay{s, *v, alone, late}
}

// unqueue removes a suspect from the queue. Mu must be held.
func (s *Suspects) unqueue(v *visitor) {
	i := slices.Index(s.Queue, v)
	s.Queue = slices.Delete(s.Queue, i, i+1)
	s.wake()
}

// change returns a channel closed at the next change. Mu must be held.
func (s *Suspects) change() <-chan struct{} {
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

// wake wakes all waiters. Mu must be held.
func (s *Suspects) wake() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// End ends the stay.
func (t Stay) End() {
	s := t.in
	s.Mu.Lock()
	defer s.Mu.Unlock()
	s.count--
	decrease(s.running, t.root)
	if t.Alone {
		decrease(s.alone, t.root)
	}
	s.wake()
}

func decrease(counts map[uuid.UUID]int, root uuid.UUID) {
	if counts[root]--; counts[root] == 0 {
		delete(counts, root)
	}
}

// Concurrency sets an endpoint's number of slots: the operators' value if set, else that of SetConcurrency, else the
// option. It is safe for concurrent use.
type Concurrency struct {
	Slots  *Slots
	Option int
	Log    *zap.Logger

	mu            sync.Mutex
	own, operator int // 0 if not set
}

// SetOwn applies SetConcurrency.
func (s *Concurrency) SetOwn(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own = n
	s.apply("the service")
}

// SetOperator applies the consumer's settings.
func (s *Concurrency) SetOperator(settings stream.ConsumerSettings) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.operator = settings.Concurrency
	s.apply("an operator")
}

// apply resizes the slots if needed. mu must be held.
func (s *Concurrency) apply(who string) {
	size := cmp.Or(s.operator, s.own, s.Option)
	before := s.Slots.Len()
	if size == before {
		return
	}
	s.Slots.resize(size)
	s.Log.Info("the concurrency was changed by "+who, zap.Int("from", before), zap.Int("to", size))
}
