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
	// isolationTimeout is how long a suspect waits to be alone, and others wait for a suspect, while no handler ends. It
	// ends what would wait indefinitely: a handler that asks its own process for something and waits.
	isolationTimeout = 30 * time.Second
)

// Suspects keeps requests that may kill their process apart from all others in it, whatever endpoint they are of: if
// one does, no one else is blamed. Others share the process; a suspect waits until it has it for itself, and what comes
// after it waits for the suspect. What is done on behalf of the same slice of a node does not wait for each other: the
// one may wait for the other's answer.
//
// It is safe for concurrent use.
type Suspects struct {
	Timeout time.Duration

	Mu      sync.Mutex
	running map[uuid.UUID]int // handlers at work, by what they are done for
	count   int               // all of them
	alone   map[uuid.UUID]int // the suspects among them
	Queue   []*visitor        // suspects that wait, in order
	changed chan struct{}     // closed when those who wait should look again; nil when no one waits
}

// visitor is a request that wants to be handled.
type visitor struct {
	root    uuid.UUID // what it is done for
	suspect bool
}

// Stay is a visitor who is let in. Its end must be called.
type Stay struct {
	in *Suspects
	visitor
	Alone bool // a suspect that has the process for itself
	Late  bool // let in because nothing went on
}

// NewSuspects knows of no suspect.
func NewSuspects() *Suspects {
	return &Suspects{Timeout: isolationTimeout, running: map[uuid.UUID]int{}, alone: map[uuid.UUID]int{}}
}

// Enter waits until a visitor may be handled, or nothing has ended for so long that it will do no good to wait on. It
// reports false when stop was closed before.
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

// welcome reports whether a visitor may be handled now. Called with mu held.
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

// admit lets a visitor in. Called with mu held.
func (s *Suspects) admit(v *visitor, alone, late bool) Stay {
	s.count++
	s.running[v.root]++
	if alone {
		s.alone[v.root]++
	}
	return Stay{s, *v, alone, late}
}

// unqueue takes a suspect out of the queue. Called with mu held.
func (s *Suspects) unqueue(v *visitor) {
	i := slices.Index(s.Queue, v)
	s.Queue = slices.Delete(s.Queue, i, i+1)
	s.wake()
}

// change returns what will be closed when something has changed. Called with mu held.
func (s *Suspects) change() <-chan struct{} {
	if s.changed == nil {
		s.changed = make(chan struct{})
	}
	return s.changed
}

// wake has waiters check again. Called with mu held.
func (s *Suspects) wake() {
	if s.changed != nil {
		close(s.changed)
		s.changed = nil
	}
}

// End is called when the visitor has been handled.
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

// Concurrency decides how many slots an endpoint has: as many as operators say, for as long as they say anything, then
// what SetConcurrency said, then the option.
//
// It is safe for concurrent use.
type Concurrency struct {
	Slots  *Slots
	Option int
	Log    *zap.Logger

	mu            sync.Mutex
	own, operator int // 0: nothing was said
}

// SetOwn takes what SetConcurrency says.
func (s *Concurrency) SetOwn(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own = n
	s.apply("the service")
}

// SetOperator takes what the consumer says.
func (s *Concurrency) SetOperator(settings stream.ConsumerSettings) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.operator = settings.Concurrency
	s.apply("an operator")
}

// apply changes the slots, if there is anything to change. Called with mu held.
func (s *Concurrency) apply(who string) {
	size := cmp.Or(s.operator, s.own, s.Option)
	before := s.Slots.Len()
	if size == before {
		return
	}
	s.Slots.resize(size)
	s.Log.Info("the concurrency was changed by "+who, zap.Int("from", before), zap.Int("to", size))
}
