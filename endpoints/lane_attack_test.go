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

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
)

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
