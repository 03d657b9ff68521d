package endpoints

import (
	"context"
	"sync"
	"testing"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// finished counts how often each slice was handled to its end.
type finished struct {
	mu sync.Mutex
	by map[uuid.UUID]int
}

func (f *finished) handle(_ context.Context, chunk *Chunk[number, square]) error {
	for _, item := range chunk.Items() {
		item.Reply(square{item.In.N})
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.by[chunk.Meta().Slice]++
	return nil
}

func (f *finished) len() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.by)
}

// TestCleanStopsRepeatNothing has instances come and go under load, as in a deployment. What is redelivered is what was
// not begun.
func TestCleanStopsRepeatNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	names := []string{"one", "two", "three"}
	const rounds, each = 6, 150
	for _, name := range names {
		b.shortWait(name, patience/4) // so that what was not acknowledged comes back in this test
	}
	done, watch := &finished{by: map[uuid.UUID]int{}}, testenv.NewWatch(t)
	instance := func() (stop func() error) {
		svc := b.service()
		for _, name := range names {
			check(t, HandleList(svc, name, done.handle, Concurrency(3)))
		}
		return b.Run(svc)
	}
	var asking sync.WaitGroup
	asking.Go(func() {
		for n := range rounds * each {
			_, msg := b.request(names[n%len(names)], numbers(3))
			if _, err := b.js.PublishMsg(b.ctx, msg); err != nil {
				t.Error(err)
				return
			}
		}
	})
	t.Cleanup(asking.Wait)
	for round := 1; round <= rounds; round++ {
		stop := instance()
		eventually(t, "it is at work", func() bool { return done.len() >= round*each/2 })
		check(t, stop()) // with pulls open, and chunks at work
	}
	asking.Wait()
	stop := instance()
	b.collect(rounds * each)
	for _, name := range names {
		eventually(t, "all is acknowledged", func() bool { return b.backlog(name) == 0 })
	}
	check(t, stop())
	again := 0
	for slice, times := range done.by {
		if again += times - 1; times != 1 {
			t.Logf("slice %s was finished %d times", slice, times)
		}
	}
	// On a machine that stands still the server may not say in time whom to acknowledge to.
	if stood := watch.Longest() > stream.AckTimeout/2; again > 0 && (!stood || again > b.unacknowledged()) {
		t.Errorf("%d slices were finished again", again)
	}
	if len(done.by) != rounds*each {
		t.Errorf("%d of %d slices were finished", len(done.by), rounds*each)
	}
}
