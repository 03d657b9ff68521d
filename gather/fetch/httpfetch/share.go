package httpfetch

import (
	"context"

	"github.com/google/uuid"
	"golang.org/x/time/rate"

	"github.com/tranchehq/tranche/gather/fetch"
)

// shareKey is a step of a run.
type shareKey struct {
	run  uuid.UUID
	step string
}

// share is what all chunks of a step that are at work on this node have in common: how many requests it has at once,
// and how fast they come. Claims keep the rate over all nodes, but by chunks; here it is smoothed.
type share struct {
	users   int // chunks at work; guarded by the client's mutex
	turns   chan struct{}
	limiter *rate.Limiter // nil: no limit
}

// join takes part in a step's share until leave is called.
func (c *Client) join(req *fetch.Request, s *step) (mine *share, leave func()) {
	key := shareKey{req.Run, req.Step}
	c.mu.Lock()
	defer c.mu.Unlock()
	mine = c.shares[key]
	if mine == nil {
		mine = &share{turns: make(chan struct{}, s.Concurrency)}
		c.shares[key] = mine
	}
	mine.users++
	switch { // the rate may be set while the run goes on
	case req.Rate <= 0:
		mine.limiter = nil
	case mine.limiter == nil:
		mine.limiter = rate.NewLimiter(rate.Limit(req.Rate), 1)
	default:
		mine.limiter.SetLimit(rate.Limit(req.Rate))
	}
	limited := &share{turns: mine.turns, limiter: mine.limiter}
	return limited, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if mine.users--; mine.users == 0 {
			delete(c.shares, key)
		}
	}
}

// enter waits for a turn. It returns false when the context ends before, or would by the time the rate allows it.
func (s *share) enter(ctx context.Context) bool {
	select {
	case s.turns <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	if s.limiter != nil && s.limiter.Wait(ctx) != nil {
		s.leave()
		return false
	}
	return true
}

func (s *share) leave() { <-s.turns }
