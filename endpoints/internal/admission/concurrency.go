package admission

import (
	"cmp"
	"sync"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
)

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
