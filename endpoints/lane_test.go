package endpoints

import (
	"context"
	"errors"
	"slices"
	"strings"
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

// load is a run that never ends: so many chunks of it always wait or are at work, each item of which takes a while.
type load struct {
	each     bool // HandleEach serves it
	item     time.Duration
	items    int // of a chunk
	inFlight int // chunks
}

// under runs a service under a load, as endpoint busy, and counts the items of the run that are done.
func (l load) under(t testing.TB, opts ...Option) (*bundle, *atomic.Int64) {
	t.Helper()
	b, done := setup(t), &atomic.Int64{}
	work := func(in number) square {
		_ = backoff.Sleep(context.Background(), l.item)
		if in.N >= 0 {
			done.Add(1)
		}
		return square{in.N * in.N}
	}
	svc := b.service()
	if l.each {
		handle := func(_ context.Context, in number) (square, error) { return work(in), nil }
		check(t, HandleEach(svc, "busy", handle, opts...))
	} else {
		check(t, HandleList(svc, "busy", each(func(i *Item[number, square]) { i.Reply(work(i.In)) }), opts...))
	}
	replies := testenv.Must(b.nc.SubscribeSync(wire.ReplySubject("busy")))(t)
	for range l.inFlight {
		b.ask("busy", numbers(l.items))
	}
	b.Run(svc)
	var feeding sync.WaitGroup
	ctx, cancel := context.WithCancel(b.ctx)
	t.Cleanup(func() { cancel(); feeding.Wait() })
	feeding.Go(func() {
		for {
			reply, err := replies.NextMsgWithContext(ctx)
			if err != nil {
				return
			}
			if reply.Header.Get(wire.HeaderFinal) != "" {
				_, msg := b.request("busy", numbers(l.items))
				_, _ = b.js.PublishMsgAsync(msg)
			}
		}
	})
	eventually(t, "it works", func() bool { return done.Load() > 0 })
	knowsLane(b, b.nc, "busy")
	return b, done
}

// knowsLane waits until a connection knows, for the next seconds, that an endpoint reads calls apart. A caller who does
// not hear so in a quarter of a second has the call wait among the chunks.
func knowsLane(b *bundle, nc *nats.Conn, endpoint string) {
	b.t.Helper()
	eventually(b.t, endpoint+" has a lane", func() bool { return stream.HasLane(b.ctx, nc, endpoint) })
}

// TestACallDoesNotWaitForTheQueue has far more chunks lie in the stream than are worked on while someone calls.
func TestACallDoesNotWaitForTheQueue(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		each bool
		opts []Option
	}{
		"of lists, with a place": {false, []Option{Concurrency(1), Reserve(1)}},
		"item by item":           {true, []Option{Concurrency(1)}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const items = 20
			l := load{each: tc.each, item: 5 * time.Millisecond, items: items, inFlight: 400} // 40 s of work
			b, done := l.under(t, tc.opts...)
			var took []int64 // in items of the chunks, since a machine may be as slow as it likes
			for n := range 20 {
				knowsLane(b, b.nc, "busy")
				before := done.Load()
				got := testenv.Must(Call[number, square](b.ctx, b.nc, "busy", "k", number{-n}))(t)
				testenv.MustSame(t, got.Square, n*n, "called with %d: %+v", n, got)
				took = append(took, done.Load()-before)
			}
			slices.Sort(took)
			if took[10] > 10*items { // without a lane it would be all
				t.Errorf("half of the calls waited for over %d items; a chunk has %d", took[10], items)
			}
		})
	}
}

// A flow that someone waits for goes before its chunks in each stage, and what it asks before those of its callee.
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
		perItem(func(i *StageItem[number, square, None, None]) { leaf.Ask(i, i.In) }),
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
		testenv.Same(t, testenv.Must(Call[number, square](b.ctx, b.nc, "root", "k", number{n}))(t).Square, n*n,
			"called with %d", n)
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
		testenv.Must(b.nc.Subscribe(wire.WorkSubject(endpoint), func(msg *nats.Msg) {
			if msg.Header.Get(wire.HeaderMode) == string(wire.ModeSingle) {
				calls.Add(1)
			}
		}))(b.t)
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
	got := testenv.Must(Call[number, square](b.ctx, b.nc, "square", "k", number{3}))(t)
	testenv.Same(t, got.Square, 9, "called: %+v", got)
	if stream.HasLane(b.ctx, b.nc, "square") || svc.Stats()[0].Lane {
		t.Error("it says that it has a lane")
	}
	_, err := b.js.Consumer(b.ctx, wire.StreamWork, wire.ConsumerName(wire.LaneOf("square")))
	testenv.Fails(t, err, "there is a consumer")
}

// Of those who gave up, a service works for the few whose requests it had fetched by then.
func TestNobodyWorksForCallersWhoAreGone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	g := newGate(t)
	serveList(b, "square", g.handle, Concurrency(1))
	eventually(t, "it has a lane", func() bool { return stream.HasLane(b.ctx, b.nc, "square") })
	b.ask("square", numbers(1))
	<-g.begun
	const callers = 100
	var gone sync.WaitGroup
	for range callers {
		gone.Go(func() {
			for heard := false; !heard; { // on a slow machine the stream may not take its request in time
				for !stream.HasLane(b.ctx, b.nc, "square") && b.ctx.Err() == nil { // or it goes where chunks go
					_ = backoff.Sleep(b.ctx, 10*time.Millisecond)
				}
				ctx, cancel := context.WithTimeout(b.ctx, time.Second)
				_, err := Call[number, square](ctx, b.nc, "square", "k", number{2})
				cancel()
				_, heard = errors.AsType[*UnansweredError](err)
				if _, late := errors.AsType[*RequestError](err); !heard && (!late || b.ctx.Err() != nil) {
					t.Errorf("a call without an answer got %v", err)
					return
				}
			}
		})
	}
	gone.Wait()
	lane := wire.WorkSubject(wire.LaneOf("square"))
	eventually(t, "what no one waits for has left the stream", func() bool {
		work, err := b.js.Stream(b.ctx, wire.StreamWork)
		if err != nil {
			return false
		}
		_, err = work.GetLastMsgForSubject(b.ctx, lane)
		return err != nil
	})
	g.let()
	testenv.Same(t, testenv.Must(Call[number, square](b.ctx, b.nc, "square", "k", number{3}))(t).Square, 9,
		"a call after that")
	if n := g.calls.Load(); n > 5 { // the chunk, two that were fetched and one ahead, and the last
		t.Errorf("%d requests were worked on, of %d that no one waited for", n, callers)
	}
}

// A hostile service of the same account says that another's endpoint has a lane, which no one reads, and answers what
// it was not asked. Permissions forbid both; without them a call ends in its time, with an error that says so, and
// takes no answer that is not of its slice.
func TestAHostileServiceCostsACallNoMoreThanItsTime(t *testing.T) {
	t.Parallel()
	b := setup(t)
	liar := b.connect()
	_, err := liar.Subscribe(wire.StatusSubject("square"), func(m *nats.Msg) { _ = m.Respond([]byte(`{"lane":true}`)) })
	check(t, err)
	var tries atomic.Int64
	testenv.Must(liar.Subscribe(wire.WorkSubject(wire.LaneOf("square")), func(m *nats.Msg) {
		forged := &nats.Msg{Subject: m.Header.Get(wire.HeaderReplyTo), Header: nats.Header{}, Data: []byte(
			`{"slots":[{"i":0,"d":{"square":666}}]}`)}
		for name, value := range m.Header {
			if strings.HasPrefix(name, "Tranche-") && name != wire.HeaderReplyTo {
				forged.Header[name] = value
			}
		}
		forged.Header.Set(wire.HeaderSlice, "00000000-0000-4000-8000-000000000000")
		forged.Header.Set(wire.HeaderFinal, "1")
		tries.Add(1)
		_ = liar.PublishMsg(forged)
	}))(t)
	check(t, liar.Flush())
	eventually(t, "an answer is forged", func() bool { // a busy machine may not get so far in a second
		ctx, cancel := context.WithTimeout(b.ctx, time.Second)
		defer cancel()
		began := time.Now()
		got, err := Call[number, square](ctx, b.nc, "square", "k", number{3})
		if _, late := errors.AsType[*RequestError](err); late { // the stream did not take it in time
			return false
		}
		if _, ok := errors.AsType[*UnansweredError](err); !ok || time.Since(began) > patience {
			t.Errorf("after %s the call has %+v, %v", time.Since(began), got, err)
		}
		return tries.Load() > 0
	})
}
