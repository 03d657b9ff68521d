package endpoint

import (
	"sync"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// places knows how much services say they work on at once, as of the last look at who listens. It is safe for
// concurrent use.
type places struct {
	mu sync.Mutex
	of map[string][]wire.Listener
}

// heard takes what a look has brought. One that says that it has ended, or waits for something, has no place.
func (p *places) heard(listeners []wire.Listener) {
	of := map[string][]wire.Listener{}
	for i := range listeners {
		if l := &listeners[i]; l.State != wire.StateDraining && l.State != wire.StateWaiting {
			of[l.Endpoint] = append(of[l.Endpoint], *l)
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.of = of
}

// Places is how many requests of so many items all instances of an endpoint say they work on at once; 0 when one does
// not say.
func (e *Consumers) Places(endpoint string, items int) (n int) {
	p := &e.places
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := range p.of[endpoint] {
		switch l := &p.of[endpoint][i]; {
		case l.Concurrency == 0:
			return 0
		case l.Each:
			n += (l.Concurrency + items - 1) / max(items, 1)
		default:
			n += l.Concurrency
		}
	}
	return n
}
