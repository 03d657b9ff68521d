package endpoints

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
)

// gate is a HandleList handler that says which chunk it has begun and waits to be let go.
type gate struct {
	t     *testing.T
	begun chan wire.Meta
	open  chan struct{}
	calls atomic.Int32
}

func newGate(t *testing.T) *gate {
	t.Helper()
	g := &gate{t: t, begun: make(chan wire.Meta, 100), open: make(chan struct{})}
	t.Cleanup(g.let)
	return g
}

// let opens the gate for good.
func (g *gate) let() {
	select {
	case <-g.open:
	default:
		close(g.open)
	}
}

func (g *gate) handle(_ context.Context, chunk *Chunk[number, square]) error {
	g.calls.Add(1)
	g.begun <- chunk.Meta()
	<-g.open
	for _, item := range chunk.Items() {
		item.Reply(square{item.In.N * item.In.N})
	}
	return nil
}

// remake deletes the stream of requests and makes it anew, with the endpoint's consumer.
func (b *bundle) remake(endpoint string) {
	b.t.Helper()
	check(b.t, b.js.DeleteStream(b.ctx, wire.StreamWork))
	b.streams()
	// The service may be doing the same, and the server is not always up to that.
	eventually(b.t, "the consumer is there", func() bool {
		return stream.EnsureConsumer(b.ctx, b.js, endpoint, stream.ConsumerSettings{}) == nil
	})
}

// TestRequestOfANewStreamIsNotTakenForAnOldOne has a service hold sequence 1 of a stream, and gives it sequence 1 of
// the next.
func TestRequestOfANewStreamIsNotTakenForAnOldOne(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc, g := b.service(), newGate(t)
	check(t, HandleList(svc, "list", g.handle, Concurrency(2)))
	b.Run(svc)
	old := b.ask("list", numbers(1))
	if got := await(t, "old request", g.begun); got != old {
		t.Fatalf("began %v, want %v", got, old)
	}
	b.remake("list")
	next := b.ask("list", numbers(1))
	if got := await(t, "new request", g.begun); got != next {
		t.Fatalf("began %v, want %v", got, next)
	}
	g.let()
	found := b.collect(2)
	if found[old.Slice] == nil || found[next.Slice] == nil {
		t.Error("one of them was not answered") // whether the old one is stale is for the node to say
	}
	eventually(t, "the new request is acknowledged", func() bool { return b.backlog("list") == 0 })
}

// TestFetchCountsWhatItHasTaken looks at the room as soon as a fetch has ended: the next one goes by it.
func TestFetchCountsWhatItHasTaken(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc, g := b.service(), newGate(t)
	const chunks = 64
	check(t, HandleList(svc, "list", g.handle, Concurrency(chunks/2)))
	check(t, stream.EnsureConsumer(b.ctx, b.js, "list", stream.ConsumerSettings{}))
	for range chunks + 1 {
		b.ask("list", numbers(1))
	}
	e := svc.endpoints[0]
	e.Work.Heartbeat = outlastsStalls
	span := serve.Scope{Stopping: make(chan struct{}), Working: b.ctx, Sending: b.ctx}
	var jobs sync.WaitGroup
	pulls := e.Work.Pulls(span, &jobs)
	check(t, e.Work.Fetch(b.ctx, pulls, nil))
	if want, _ := e.Work.Room.Want(); want != 0 {
		t.Errorf("%d more are wanted right after %d were taken", want, chunks)
	}
	g.let()
	pulls.Close()
	jobs.Wait()
}
