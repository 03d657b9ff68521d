package flow

import (
	"sync"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// maxRecent bounds each of the two generations of what recent remembers.
const maxRecent = 2048

// Recent remembers which chunks this instance is taking through a stage, or has taken through it, so that replies which
// come several times cost little. What it forgets, the stream knows.
type Recent struct {
	mu      sync.Mutex
	running map[wire.FlowID]bool
	young   map[wire.FlowID]bool // done
	old     map[wire.FlowID]bool
}

// NewRecent has seen nothing.
func NewRecent() *Recent {
	return &Recent{running: map[wire.FlowID]bool{}, young: map[wire.FlowID]bool{}}
}

// isDone reports whether a chunk has gone on.
func (r *Recent) isDone(id wire.FlowID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.young[id] || r.old[id]
}

// begin reports false when somebody here is taking the chunk through its stage, or has.
func (r *Recent) begin(id wire.FlowID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.running[id] || r.young[id] || r.old[id] {
		return false
	}
	r.running[id] = true
	return true
}

// end notes what became of it.
func (r *Recent) end(id wire.FlowID, done bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.running, id)
	if !done {
		return
	}
	if len(r.young) >= maxRecent {
		r.old, r.young = r.young, map[wire.FlowID]bool{}
	}
	r.young[id] = true
}
