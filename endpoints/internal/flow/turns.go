package flow

import (
	"context"
	"sync"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// turns has those who would change the same chunk here take turns: each change reads what the one before has written,
// so that to try at once is to try again.
//
// It is safe for concurrent use. The zero turns is ready.
type turns struct {
	mu     sync.Mutex
	chunks map[wire.FlowID]*turn
}

// turn is whose turn it is at one chunk.
type turn struct {
	free  chan struct{} // holds one while nobody is at it
	users int           // who is at it or waits
}

// take waits for the turn at a chunk, which give ends.
func (t *turns) take(ctx context.Context, id wire.FlowID) (give func(), err error) {
	now := t.join(id)
	select {
	case <-now.free:
		return func() {
			now.free <- struct{}{}
			t.leave(id, now)
		}, nil
	case <-ctx.Done():
		t.leave(id, now)
		return nil, ctx.Err()
	}
}

func (t *turns) join(id wire.FlowID) *turn {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.chunks == nil {
		t.chunks = map[wire.FlowID]*turn{}
	}
	now := t.chunks[id]
	if now == nil {
		now = &turn{free: make(chan struct{}, 1)}
		now.free <- struct{}{}
		t.chunks[id] = now
	}
	now.users++
	return now
}

func (t *turns) leave(id wire.FlowID, now *turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.users--; now.users == 0 {
		delete(t.chunks, id)
	}
}
