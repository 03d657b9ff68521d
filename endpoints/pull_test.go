package endpoints

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/internal/serve"
	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/internal/pull"
	"github.com/tranchehq/tranche/internal/testing/testenv"
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

// let opens the gate permanently.
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

// TestFetchCountsWhatItHasTaken looks at the room as soon as a fetch ended: the next one goes by it.
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

// TestSlowHandlersHoldFewLargeRequests has far more bytes wait than an instance should hold.
func TestSlowHandlersHoldFewLargeRequests(t *testing.T) {
	t.Parallel()
	b := setup(t)
	svc, g := b.service(), newGate(t)
	const slots, requests = 4, 20
	check(t, HandleList(svc, "large", func(_ context.Context, chunk *Chunk[string, square]) error {
		g.begun <- chunk.Meta()
		<-g.open
		for _, item := range chunk.Items() {
			item.Reply(square{})
		}
		return nil
	}, Concurrency(slots)))
	for range requests {
		b.ask("large", []payload{{0, fmt.Sprintf("%q", bytes.Repeat([]byte("x"), 1000_000))}})
	}
	b.Run(svc)
	for range slots {
		await(t, "chunk", g.begun)
	}
	room := svc.endpoints[0].Work.Room
	eventually(t, "it has fetched ahead", func() bool { return room.Len() == 2*slots })
	room.Mu.Lock()
	held := room.Bytes
	room.Mu.Unlock()
	if most := slots*int(b.nc.MaxPayload()) + serve.AheadBytes; held > most {
		t.Errorf("%d bytes are held; at most %d should be", held, most)
	}
	g.let()
	b.collect(requests)
}

// deaf makes the server lose all pulls of an endpoint, whose heartbeats are sent on; lost gets a value
// for each. The returned function ends it; pulls that were lost by then stay lost.
func (b *bundle) deaf(endpoint string) (lost <-chan struct{}, end func()) {
	b.t.Helper()
	losses := make(chan struct{}, 16)
	ctx, cancel := context.WithCancel(b.ctx)
	b.t.Cleanup(cancel)
	testenv.Must(b.nc.Subscribe("lost.pulls", func(msg *nats.Msg) {
		beat := &nats.Msg{Subject: msg.Reply, Header: nats.Header{"Status": {"100"}, "Description": {"Idle Heartbeat"}}}
		go func() {
			for backoff.Sleep(ctx, pull.Heartbeat/2) == nil {
				_ = b.nc.PublishMsg(beat)
			}
		}()
		losses <- struct{}{}
	}))(b.t)
	check(b.t, b.nc.Flush())
	next := wire.ConsumerAPI("MSG.NEXT", wire.StreamWork, endpoint)
	check(b.t, b.account.AddMapping(next, "lost.pulls"))
	return losses, func() { b.account.RemoveMapping(next) }
}

// TestWatchdogGivesALostPullUp has the server lose a pull whose heartbeats continue.
func TestWatchdogGivesALostPullUp(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.shortWait("square", 300*time.Millisecond) // so that the service asks for the consumer often
	lost, end := b.deaf("square")
	svc := b.service()
	check(t, HandleEach(svc, "square", squares))
	const patience = 500 * time.Millisecond
	svc.endpoints[0].Work.Watchdog.Timeout = patience
	svc.endpoints[0].Work.Heartbeat = outlastsStalls
	b.Run(svc)
	open := func() bool {
		w := svc.endpoints[0].Work.Watchdog
		w.Mu.Lock()
		defer w.Mu.Unlock()
		return w.Open
	}
	await(t, "pull that is lost", lost)
	eventually(t, "it counts as open", open)
	end()
	asked := time.Now()
	testenv.Same(t, b.reply("square", numbers(3)).answered, 3, "answered")
	if took := time.Since(asked); took < patience {
		t.Errorf("the pull was not lost: an answer came after %s", took)
	}
	if s := svc.Stats()[0]; s.Rebinds != 1 || b.logged.FilterMessageSnippet("none is sent to an open pull").Len() != 1 {
		t.Errorf("%d rebinds; logged: %v", s.Rebinds, b.logged.All())
	}
}

// TestConsumerThatRefusesPulls has an operator set a limit that every pull passes.
func TestConsumerThatRefusesPulls(t *testing.T) {
	t.Parallel()
	b := setup(t)
	config := stream.ConsumerConfig("square", wire.WorkSubject("square"))
	config.MaxRequestBatch = 1
	testenv.Must(b.js.CreateConsumer(b.ctx, wire.StreamWork, config))(t)
	serveEach(b, "square", squares)
	b.listed("it says so", func(l wire.Listener) bool {
		return l.State == wire.StateWaiting && strings.HasPrefix(l.Reason, "the server ends every pull of consumer square: ")
	})
	asks := testenv.Must(b.nc.SubscribeSync(wire.ConsumerAPI("MSG.NEXT", wire.StreamWork, "square")))(t)
	asked := 0
	for since := time.Now(); time.Since(since) < time.Second; asked++ {
		testenv.Must(asks.NextMsg(patience))(t)
	}
	if asked > 20 {
		t.Errorf("it asked %d times in a second", asked)
	}
	config.MaxRequestBatch = 0
	testenv.Must(b.js.UpdateConsumer(b.ctx, wire.StreamWork, config))(t)
	testenv.Same(t, b.reply("square", numbers(2)).answered, 2, "answered")
	b.listed("it listens", func(l wire.Listener) bool { return l.State == wire.StateListening })
}
