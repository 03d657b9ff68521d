package runs

import (
	"context"
	"slices"
	"sync"
	"time"
)

// heard are the endpoints that a service listened on a moment ago, and until when that is good enough for a start. To
// ask JetStream costs more than much of a small run.
type heard struct {
	mu    sync.Mutex
	until map[string]time.Time
}

const (
	// heardFor is for how long an endpoint counts as listened on.
	heardFor = 5 * time.Second
	// maxHeard bounds the endpoints that are remembered.
	maxHeard = 10_000
)

// unheard warns of endpoints that no service listens on, and has listened on just now.
func (s *Starts) unheard(ctx context.Context, names []string) []string {
	if s.NC.IsConnected() {
		names = s.heard.others(names, time.Now())
	}
	warnings := s.Unheard(ctx, names)
	if len(warnings) == 0 {
		s.heard.add(names, time.Now().Add(heardFor))
	}
	return warnings
}

func (h *heard) others(names []string, now time.Time) []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool { return now.Before(h.until[name]) })
}

func (h *heard) add(names []string, until time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.until == nil || len(h.until) > maxHeard {
		h.until = map[string]time.Time{}
	}
	for _, name := range names {
		h.until[name] = until
	}
}
