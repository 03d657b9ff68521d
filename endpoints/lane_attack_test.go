package endpoints

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/internal/admission"
	"github.com/tranchehq/tranche/endpoints/internal/consume"
	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
)

// blob is a payload of any size.
type blob struct {
	N    int    `json:"n"`
	Fill string `json:"fill,omitempty"`
}

// attacked is a service under a run that never ends, and how long its handlers have had for chunks and for calls.
type attacked struct {
	*bundle

	server      *serve.Server
	items       atomic.Int64 // of the run
	calls       atomic.Int64 // that a handler saw
	timeOfRun   atomic.Int64
	timeOfCalls atomic.Int64
}

// attack has chunks of ten items, of so long each, wait at all times.
func attack(t *testing.T, item time.Duration, opts ...Option) *attacked {
	t.Helper()
	a := &attacked{bundle: setup(t)}
	svc := a.service()
	check(t, HandleList(svc, "busy", func(_ context.Context, c *Chunk[blob, square]) error {
		began, pause := time.Now(), item
		if c.Meta().Mode == wire.ModeSingle {
			pause = 10 * item // as long as a chunk, so that few callers are enough to want all places
		}
		for _, i := range c.Items() {
			_ = backoff.Sleep(context.Background(), pause)
			i.Reply(square{i.In.N * i.In.N})
		}
		if c.Meta().Mode == wire.ModeSingle {
			a.calls.Add(1)
			a.timeOfCalls.Add(int64(time.Since(began)))
			return nil
		}
		a.items.Add(int64(len(c.Items())))
		a.timeOfRun.Add(int64(time.Since(began)))
		return nil
	}, opts...))
	a.server = svc.endpoints[0].Server
	a.bundle.Run(svc)
	eventually(t, "it has a lane", func() bool { return stream.HasLane(a.ctx, a.nc, "busy") })
	replies, err := a.nc.SubscribeSync(wire.ReplySubject("busy"))
	check(t, err)
	for range 8 {
		a.ask("busy", numbers(10))
	}
	ctx, cancel := context.WithCancel(a.ctx)
	var feeding sync.WaitGroup
	t.Cleanup(func() { cancel(); feeding.Wait() })
	feeding.Go(func() {
		for {
			reply, err := replies.NextMsgWithContext(ctx)
			if err != nil {
				return
			}
			if reply.Header.Get(wire.HeaderFinal) != "" {
				_, msg := a.request("busy", numbers(10))
				_, _ = a.js.PublishMsgAsync(msg)
			}
		}
	})
	eventually(t, "it works", func() bool { return a.items.Load() > 0 })
	return a
}

// callers has n goroutines call until ctx ends. What they get besides an answer is an error of the test.
func (a *attacked) callers(ctx context.Context, n int, fill string) (answered *atomic.Int64, all *sync.WaitGroup) {
	answered, all = &atomic.Int64{}, &sync.WaitGroup{}
	for range n {
		all.Go(func() {
			for ctx.Err() == nil {
				got, err := Call[blob, square](ctx, a.nc, "busy", "k", blob{3, fill})
				if err == nil && got.Square == 9 {
					answered.Add(1)
				} else if ctx.Err() == nil {
					a.t.Errorf("a call got %+v, %v", got, err)
				}
			}
		})
	}
	return answered, all
}

// TestAThousandCallersForTenSeconds has calls want every place all the time, for long: the run keeps about a quarter of
// it, no call is lost, and what the service holds does not grow with who waits.
func TestAThousandCallersForTenSeconds(t *testing.T) {
	t.Parallel()
	const callers, places = 1000, 1
	a := attack(t, 10*time.Millisecond, Concurrency(places), Reserve(0))
	ctx, cancel := context.WithCancel(a.ctx)
	defer cancel()
	answered, all := a.callers(ctx, callers, "")
	eventually(t, "calls want all places", func() bool { return a.server.Slots.Waiting(admission.Calls) > 0 })
	run, calls := a.timeOfRun.Load(), a.timeOfCalls.Load()
	share := func() float64 {
		run, calls := a.timeOfRun.Load()-run, a.timeOfCalls.Load()-calls
		return float64(run) / float64(run+calls)
	}
	const least = 0.15
	most, began := 0, time.Now()
	// None of the ten seconds go by before. A call that a stall draws out is made up for afterwards.
	for took := time.Duration(0); took < 10*time.Second || share() < least && took < patience; took = time.Since(began) {
		most = max(most, a.server.Calls.Room.Len())
		_ = backoff.Sleep(ctx, 10*time.Millisecond)
	}
	had := share()
	cancel()
	all.Wait()
	t.Logf("chunks had %.2f of the time; %d calls were answered; at most %d were held", had, answered.Load(), most)
	if had < least {
		t.Errorf("chunks had %.2f of the time; want about a quarter", had)
	}
	if answered.Load() == 0 {
		t.Error("no call was answered")
	}
	if most > 8*places { // a pull that is given up for lost, on a busy machine, may bring as many again
		t.Errorf("%d calls were held at once, of a service of %d places", most, places)
	}
}

// Calls that are as large as a message can be are fetched by their bytes, and the run goes on.
func TestHugeCallsAreBoundedByTheirBytes(t *testing.T) {
	t.Parallel()
	const size, places = 900 << 10, 16
	a := attack(t, 5*time.Millisecond, Concurrency(places), Reserve(0))
	ctx, cancel := context.WithCancel(a.ctx)
	defer cancel()
	before := a.items.Load()
	answered, all := a.callers(ctx, 40, strings.Repeat("x", size))
	most := 0
	for ctx.Err() == nil && answered.Load() < 20 {
		a.server.Calls.Room.Mu.Lock()
		most = max(most, a.server.Calls.Room.Bytes)
		a.server.Calls.Room.Mu.Unlock()
		_ = backoff.Sleep(ctx, 2*time.Millisecond)
	}
	cancel()
	all.Wait()
	t.Logf("%d calls were answered; at most %d MiB were held; the run did %d items", answered.Load(), most>>20,
		a.items.Load()-before)
	if limit := 2*consume.AheadBytes + (places+1)*(size+1024); most > limit { // likewise
		t.Errorf("%d bytes were held; want at most those at work and %d ahead", most, consume.AheadBytes)
	}
	if answered.Load() == 0 || a.items.Load() == before {
		t.Errorf("%d calls were answered, and %d items of the run", answered.Load(), a.items.Load()-before)
	}
}

// Of those who gave up, a service works for the few whose requests it had fetched by then.
func TestNobodyWorksForCallersWhoAreGone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	g := newGate(t)
	check(t, HandleList(svc, "square", g.handle, Concurrency(1)))
	b.Run(svc)
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
	eventually(t, "what nobody waits for has left the stream", func() bool {
		work, err := b.js.Stream(b.ctx, wire.StreamWork)
		if err != nil {
			return false
		}
		_, err = work.GetLastMsgForSubject(b.ctx, lane)
		return err != nil
	})
	g.let()
	if got, err := Call[number, square](b.ctx, b.nc, "square", "k", number{3}); err != nil || got.Square != 9 {
		t.Errorf("a call after that: %+v, %v", got, err)
	}
	if n := g.calls.Load(); n > 5 { // the chunk, two that were fetched and one ahead, and the last
		t.Errorf("%d requests were worked on, of %d that nobody waited for", n, callers)
	}
}

// A request that is published twice, by a caller who did not hear the first time, is worked on once.
func TestACallThatIsPublishedTwiceIsDoneOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc := b.service()
	var calls atomic.Int64
	check(t, HandleEach(svc, "square", func(ctx context.Context, in number) (square, error) {
		calls.Add(1)
		return squares(ctx, in)
	}))
	b.Run(svc)
	eventually(t, "it has a lane", func() bool { return stream.HasLane(b.ctx, b.nc, "square") })
	const twice, answer = 8, "tranche.call.caller.ABCDEF.square"
	answers, err := b.nc.SubscribeSync(answer)
	check(t, err)
	_, msg := b.request("square", numbers(1))
	msg.Subject = wire.WorkSubject(wire.LaneOf("square"))
	msg.Header.Set(wire.HeaderMode, string(wire.ModeSingle))
	msg.Header.Set(wire.HeaderReplyTo, answer)
	for n := range twice {
		ack, err := b.js.PublishMsg(b.ctx, msg)
		if err != nil || ack.Duplicate != (n > 0) {
			t.Fatalf("publishing it again: %+v, %v", ack, err)
		}
	}
	_, err = answers.NextMsgWithContext(b.ctx)
	check(t, err)
	if got, err := Call[number, square](b.ctx, b.nc, "square", "k", number{3}); err != nil || got.Square != 9 {
		t.Errorf("the call after it: %+v, %v", got, err)
	}
	if n := calls.Load(); n != 2 {
		t.Errorf("the handler was called %d times for two calls", n)
	}
}

// A hostile service of the same account says that another's endpoint has a lane, which nobody reads, and answers what
// it was not asked. Permissions forbid both; without them a call ends in its time, with an error that says so, and
// takes no answer that is not of its slice.
func TestAHostileServiceCostsACallNoMoreThanItsTime(t *testing.T) {
	t.Parallel()
	b := setup(t)
	liar := b.connect()
	_, err := liar.Subscribe(wire.StatusSubject("square"), func(m *nats.Msg) { _ = m.Respond([]byte(`{"lane":true}`)) })
	check(t, err)
	var tries atomic.Int64
	_, err = liar.Subscribe(wire.WorkSubject(wire.LaneOf("square")), func(m *nats.Msg) {
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
	})
	check(t, err)
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
