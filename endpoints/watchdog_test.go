package endpoints

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/internal/pull"
)

// deaf has the server lose all pulls of an endpoint, while somebody goes on to send their heartbeats; lost gets a value
// for each. The returned function ends it; pulls that were lost by then stay lost.
func (b *bundle) deaf(endpoint string) (lost <-chan struct{}, end func()) {
	b.t.Helper()
	losses := make(chan struct{}, 16)
	ctx, cancel := context.WithCancel(b.ctx)
	b.t.Cleanup(cancel)
	_, err := b.nc.Subscribe("lost.pulls", func(msg *nats.Msg) {
		beat := &nats.Msg{Subject: msg.Reply, Header: nats.Header{"Status": {"100"}, "Description": {"Idle Heartbeat"}}}
		go func() {
			for backoff.Sleep(ctx, pull.Heartbeat/2) == nil {
				_ = b.nc.PublishMsg(beat)
			}
		}()
		losses <- struct{}{}
	})
	check(b.t, err)
	check(b.t, b.nc.Flush())
	next := wire.ConsumerAPI("MSG.NEXT", wire.StreamWork, endpoint)
	account := b.server.GlobalAccount()
	check(b.t, account.AddMapping(next, "lost.pulls"))
	return losses, func() { account.RemoveMapping(next) }
}

// TestWatchdogGivesALostPullUp has the server lose a pull whose heartbeats go on.
func TestWatchdogGivesALostPullUp(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.shortWait("square", 300*time.Millisecond) // so that the service asks for the consumer often
	lost, end := b.deaf("square")
	svc := b.service()
	check(t, HandleEach(svc, "square", squares))
	const patience = 500 * time.Millisecond
	svc.endpoints[0].Work.Watchdog.Patience = patience
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
	if w := b.reply("square", numbers(3)); w.answered != 3 {
		t.Errorf("answered %d", w.answered)
	}
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
	_, err := b.js.CreateConsumer(b.ctx, wire.StreamWork, config)
	check(t, err)
	serveEach(b, "square", squares)
	b.listed("it says so", func(l wire.Listener) bool {
		return l.State == wire.StateWaiting && strings.HasPrefix(l.Reason, "the server ends every pull of consumer square: ")
	})
	asks, err := b.nc.SubscribeSync(wire.ConsumerAPI("MSG.NEXT", wire.StreamWork, "square"))
	check(t, err)
	asked := 0
	for since := time.Now(); time.Since(since) < 2*time.Second; asked++ {
		_, err := asks.NextMsg(patience)
		check(t, err)
	}
	if asked > 40 {
		t.Errorf("it asked %d times in 2 s", asked)
	}
	config.MaxRequestBatch = 0
	_, err = b.js.UpdateConsumer(b.ctx, wire.StreamWork, config)
	check(t, err)
	if w := b.reply("square", numbers(2)); w.answered != 2 {
		t.Errorf("answered %d", w.answered)
	}
	b.listed("it listens", func(l wire.Listener) bool { return l.State == wire.StateListening })
}
