package endpoints

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// set does what a node does for an operator.
func (b *bundle) set(endpoint string, settings stream.ConsumerSettings) {
	b.t.Helper()
	consumer, err := b.js.Consumer(b.ctx, wire.StreamWork, wire.ConsumerName(endpoint))
	check(b.t, err)
	check(b.t, stream.SetConsumer(b.ctx, b.js, consumer, settings))
}

func TestConcurrencyChangesWhileRunning(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.shortWait("list", 300*time.Millisecond)
	svc, g := b.service(), newGate(t)
	check(t, HandleList(svc, "list", g.handle, Concurrency(1)))
	b.Run(svc)
	for range 8 {
		b.ask("list", numbers(1))
	}
	begun := func(n int32) {
		t.Helper()
		eventually(t, "they are at work", func() bool { return g.calls.Load() == n })
	}
	begun(1)
	check(t, svc.SetConcurrency("list", 3))
	begun(3)
	b.set("list", stream.ConsumerSettings{Concurrency: 5})
	begun(5)
	check(t, svc.SetConcurrency("list", 7)) // waits for its turn
	if n := svc.Stats()[0].Concurrency; n != 5 {
		t.Errorf("the concurrency is %d while an operator says 5", n)
	}
	b.set("list", stream.ConsumerSettings{})
	begun(7)
	check(t, svc.SetConcurrency("list", 0))
	if n := svc.Stats()[0].Concurrency; n != 1 {
		t.Errorf("the concurrency is %d, and the option says 1", n)
	}
	g.let()
	b.collect(8)
	if n := b.logged.FilterMessageSnippet("the concurrency was changed").Len(); n != 4 {
		t.Errorf("%d changes are logged", n)
	}
}

// stepwise is a handler that does one item for each value that it receives.
func stepwise(steps <-chan struct{}) func(context.Context, number) (square, error) {
	return func(ctx context.Context, in number) (square, error) {
		<-steps
		return squares(ctx, in)
	}
}

// TestConcurrencyOfItemsChangesWithinAChunk has a chunk under way get more workers, and fewer.
func TestConcurrencyOfItemsChangesWithinAChunk(t *testing.T) {
	t.Parallel()
	b := setup(t)
	steps := make(chan struct{})
	svc := serveEach(b, "each", stepwise(steps), Concurrency(1))
	b.ask("each", numbers(30))
	used := func(n int64) {
		t.Helper()
		eventually(t, "so many are at work", func() bool { return svc.endpoints[0].Slots.Used[serve.Chunks].Load() == n })
	}
	used(1)
	check(t, svc.SetConcurrency("each", 4))
	used(4)
	check(t, svc.SetConcurrency("each", 2))
	for range 4 {
		steps <- struct{}{}
	}
	used(2)
	close(steps)
	for _, w := range b.collect(1) {
		if w.answered != 30 {
			t.Errorf("answered %d", w.answered)
		}
	}
}

func TestSetConcurrencyRefuses(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	check(t, HandleEach(svc, "square", squares))
	for want, err := range map[string]error{
		"it has no handler":  svc.SetConcurrency("other", 1),
		"-1 is not 0 to":     svc.SetConcurrency("square", -1),
		"1025 is not 0 to 1": svc.SetConcurrency("square", wire.MaxConcurrency+1),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
