package orchestrator

import (
	"sync"
	"time"

	"github.com/tranchehq/tranche/endpoints"
)

// muteAfter is how long JetStream has not answered until the node says so. A server that hands over what it leads is
// silent for less.
const muteAfter = 3 * time.Second

// muteness is for how long the streams have not answered, although the connection stands: there is no quorum of their
// servers, or they have not elected a leader yet.
type muteness struct {
	mu    sync.Mutex
	since time.Time // zero: they answer
	last  string    // what the last look said
}

// note takes how a look at the streams ended. An error of which they are not the reason changes nothing.
func (m *muteness) note(asked time.Time, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case err == nil:
		m.since = time.Time{}
	case endpoints.Unanswered(err):
		m.last = readable(err)
		if m.since.IsZero() {
			m.since = asked
		}
	}
}

// muteStreams is what a heartbeat says of streams that do not answer; explanations and health read it.
type muteStreams struct {
	Seconds float64 `json:"seconds"`
	Why     string  `json:"why"`
}

// pulse is nil while the streams answer.
func (m *muteness) pulse() *muteStreams {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.since.IsZero() || time.Since(m.since) < muteAfter {
		return nil
	}
	return &muteStreams{time.Since(m.since).Seconds(), m.last}
}
