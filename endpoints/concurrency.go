package endpoints

import (
	"cmp"
	"fmt"
	"sync"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// setting decides how many slots an endpoint has: as many as operators say, for as long as they say anything, then what
// SetConcurrency said, then the option.
//
// It is safe for concurrent use.
type setting struct {
	slots  *slots
	option int
	log    *zap.Logger

	mu            sync.Mutex
	own, operator int // 0: nothing was said
}

// setOwn takes what SetConcurrency says.
func (s *setting) setOwn(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.own = n
	s.apply("the service")
}

// setOperator takes what the consumer says.
func (s *setting) setOperator(settings stream.ConsumerSettings) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.operator = settings.Concurrency
	s.apply("an operator")
}

// apply changes the slots, if there is anything to change. Called with mu held.
func (s *setting) apply(who string) {
	size := cmp.Or(s.operator, s.own, s.option)
	before := s.slots.len()
	if size == before {
		return
	}
	s.slots.resize(size)
	s.log.Info("the concurrency was changed by "+who, zap.Int("from", before), zap.Int("to", size))
}

// SetConcurrency changes how many chunks (HandleList, HandleFlow) or items (HandleEach) of an endpoint this instance
// handles at once, from 1 to MaxConcurrency; 0 goes back to the option. It may be called at any time. More is of use at
// once; less takes effect as chunks end, or, with HandleEach, items. What operators set for the endpoint comes first:
// while they do, n waits for its turn.
func (s *Service) SetConcurrency(endpoint string, n int) error {
	if n < 0 || n > wire.MaxConcurrency {
		return fmt.Errorf("set concurrency of endpoint %s: %d is not 0 to %d", endpoint, n, wire.MaxConcurrency)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range s.endpoints {
		if e.name == endpoint {
			e.setting.setOwn(n)
			return nil
		}
	}
	return fmt.Errorf("set concurrency of endpoint %.80q: it has no handler", endpoint)
}
