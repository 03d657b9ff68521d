package streams

import (
	"sync"
	"time"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/orchestrator/internal/kernel"
)

// stalledAfter is how long JetStream has not answered until the node says so. A server that hands over what it leads is
// silent for less.
const stalledAfter = 3 * time.Second

// stalling is for how long the streams have not answered, although the connection stands: there is no quorum of their
// servers, or they have not elected a leader yet.
type stalling struct {
	mu    sync.Mutex
	since time.Time // zero: they answer
	last  string    // what the last look said
}

// note takes how a look at the streams ended. An error of which they are not the reason changes nothing.
func (m *stalling) note(asked time.Time, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err == nil:
		m.since = time.Time{}
	case stream.Unanswered(err):
		m.last = kernel.Readable(err)
		if m.since.IsZero() {
			m.since = asked
		}
	}
}

// StalledStreams is what a heartbeat says of streams that do not answer; explanations and health read it.
type StalledStreams struct {
	Seconds float64 `json:"seconds"`
	Why     string  `json:"why"`
}

// pulse is nil while the streams answer.
func (m *stalling) pulse() *StalledStreams {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.since.IsZero() || time.Since(m.since) < stalledAfter {
		return nil
	}
	return &StalledStreams{time.Since(m.since).Seconds(), m.last}
}
