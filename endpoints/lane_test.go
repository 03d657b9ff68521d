package endpoints

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// besideAChunk has a service of one place work on a backlog of chunks, each item of which takes a while, and returns
// what its connection may call.
func besideAChunk(
	t *testing.T, each bool, item time.Duration, chunks, items int, opts ...Option,
) (*bundle, *atomic.Int64) {
	t.Helper()
	b := setup(t)
	svc := b.service()
	done := &atomic.Int64{}
	work := func() {
		_ = backoff.Sleep(context.Background(), item)
		done.Add(1)
	}
	if each {
		check(t, HandleEach(svc, "busy", func(_ context.Context, in number) (square, error) {
			work()
			return square{in.N * in.N}, nil
		}, opts...))
	} else {
		check(t, HandleList(svc, "busy", func(_ context.Context, c *Chunk[number, square]) error {
			for _, i := range c.Items() {
				work()
				i.Reply(square{i.In.N * i.In.N})
			}
			return nil
		}, opts...))
	}
	for range chunks {
		b.ask("busy", numbers(items))
	}
	b.Run(svc)
	eventually(t, "it works", func() bool { return done.Load() > 0 })
	knowsLane(b, b.nc, "busy")
	return b, done
}

// knowsLane waits until a connection knows, for the next seconds, that an endpoint reads calls apart. Who does not hear
// so in a quarter of a second has a call wait among the chunks.
func knowsLane(b *bundle, nc *nats.Conn, endpoint string) {
	b.t.Helper()
	eventually(b.t, endpoint+" has a lane", func() bool { return stream.HasLane(b.ctx, nc, endpoint) })
}

// TestACallDoesNotWaitForTheQueue has far more chunks lie in the stream than are worked on while somebody calls.
func TestACallDoesNotWaitForTheQueue(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		each bool
		opts []Option
		call []CallOption
	}{
		"of lists, with a place": {false, []Option{Concurrency(1), Reserve(1)}, nil},
		"of lists, direct":       {false, []Option{Concurrency(1), Reserve(1)}, []CallOption{Direct()}},
		"of lists, without":      {false, []Option{Concurrency(1)}, nil},
		"item by item":           {true, []Option{Concurrency(1)}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const chunks, items = 400, 20 // 40 s of work
			b, done := besideAChunk(t, tc.each, 5*time.Millisecond, chunks, items, tc.opts...)
			var took []int64 // in items of the chunks, since a machine may be as slow as it likes
			for n := range 20 {
				knowsLane(b, b.nc, "busy")
				before := done.Load()
				got, err := Call[number, square](b.ctx, b.nc, "busy", "k", number{n}, tc.call...)
				if err != nil || got.Square != n*n {
					t.Fatalf("called with %d: %+v, %v", n, got, err)
				}
				took = append(took, done.Load()-before-1)
			}
			if done.Load() > chunks*items/2 {
				t.Fatal("the backlog is nearly over")
			}
			slices.Sort(took)
			t.Logf("half waited for %d items, the longest for %d", took[10], took[19])
			if took[10] > 10*items { // without a lane it would be all
				t.Errorf("half of the calls waited for over %d items; a chunk has %d", took[10], items)
			}
		})
	}
}

// TestAThousandCallersDoNotStopABatch starves chunks as well as it can.
func TestAThousandCallersDoNotStopABatch(t *testing.T) {
	t.Parallel()
	const chunks = 20
	b, done := besideAChunk(t, false, time.Millisecond, chunks, 10, Concurrency(1))
	ctx, cancel := context.WithCancel(b.ctx)
	var callers sync.WaitGroup
	var answered atomic.Int64
	for range 1000 {
		callers.Go(func() {
			for ctx.Err() == nil {
				if _, err := Call[number, square](ctx, b.nc, "busy", "k", number{1}); err == nil {
					answered.Add(1)
				}
			}
		})
	}
	b.collect(chunks)
	cancel()
	callers.Wait()
	t.Logf("beside %d items of the batch %d calls were answered", chunks*10, answered.Load())
	if n := done.Load(); n < chunks*10+answered.Load() {
		t.Errorf("%d items were worked on", n)
	}
}

// A flow that somebody waits for goes before its chunks in each stage, and what it asks before those of its callee.
func TestAFlowOnBehalfOfACallComesFirst(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	done := &atomic.Int64{}
	work := func() { _ = backoff.Sleep(context.Background(), 100*time.Millisecond) }
	leaf := To[number, square]("leaf")
	check(t, HandleList(svc, "leaf", func(_ context.Context, c *Chunk[number, square]) error {
		work()
		for _, i := range c.Items() {
			i.Reply(square{i.In.N * i.In.N})
		}
		return nil
	}, Concurrency(1)))
	type numbers4 = Stage[number, square, None, None]
	check(t, HandleFlow(svc, "root", []func(context.Context, *numbers4) error{
		func(_ context.Context, s *numbers4) error {
			for _, i := range s.Items() {
				leaf.Ask(i, i.In)
			}
			return nil
		},
		func(_ context.Context, s *numbers4) error {
			work()
			for _, i := range s.Items() {
				i.Reply(leaf.Answer(i))
			}
			done.Add(1)
			return nil
		},
	}, Concurrency(1)))
	b.Run(svc)
	const chunks = 120 // 12 s of work at each
	for range chunks {
		b.ask("root", numbers(2))
	}
	eventually(t, "it works", func() bool { return done.Load() > 0 })
	among := b.callsAmongChunks("root", "leaf")
	for n := range 5 {
		knowsLane(b, b.nc, "root")
		knowsLane(b, svc.host.NC, "leaf") // whom the flow asks
		if got, err := Call[number, square](b.ctx, b.nc, "root", "k", number{n}); err != nil || got.Square != n*n {
			t.Errorf("called with %d: %+v, %v", n, got, err)
		}
	}
	if n := done.Load(); n > chunks*3/4 && !among() {
		t.Errorf("%d of %d chunks were done before five calls were answered", n, chunks)
	}
}

// callsAmongChunks returns what reports whether a call has gone where chunks go while services were slow to say that
// they read calls apart: then it has to wait.
func (b *bundle) callsAmongChunks(endpoints ...string) func() bool {
	b.t.Helper()
	var calls, longest atomic.Int64
	for _, endpoint := range endpoints {
		_, err := b.nc.Subscribe(wire.WorkSubject(endpoint), func(msg *nats.Msg) {
			if msg.Header.Get(wire.HeaderMode) == string(wire.ModeSingle) {
				calls.Add(1)
			}
		})
		check(b.t, err)
	}
	nc := b.connect()
	stop := testenv.Keep(b.t, b.t.Errorf, "asking services", func(ctx context.Context) error {
		for backoff.Sleep(ctx, 10*time.Millisecond) == nil {
			began := time.Now()
			if _, err := nc.RequestWithContext(ctx, wire.StatusSubject(endpoints[0]), nil); err != nil && ctx.Err() == nil {
				return err
			}
			longest.Store(max(longest.Load(), int64(time.Since(began))))
		}
		return nil
	})
	return func() bool {
		stop()
		return calls.Load() > 0 && longest.Load() > int64(100*time.Millisecond) // a call waits for 250 ms
	}
}

// A service of another language reads no lane: calls come with the chunks.
func TestACallToWhoHasNoLane(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	check(t, HandleEach(svc, "square", squares))
	svc.endpoints[0].Calls.Ensure = func(context.Context) error { return context.DeadlineExceeded }
	b.Run(svc)
	got, err := Call[number, square](b.ctx, b.nc, "square", "k", number{3})
	if err != nil || got.Square != 9 {
		t.Errorf("got %+v, %v", got, err)
	}
	if stream.HasLane(b.ctx, b.nc, "square") || svc.Stats()[0].Lane {
		t.Error("it says that it has a lane")
	}
	if _, err := b.js.Consumer(b.ctx, wire.StreamWork, wire.ConsumerName(wire.LaneOf("square"))); err == nil {
		t.Error("there is a consumer")
	}
}
