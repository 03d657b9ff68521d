package endpoints

import (
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// listed waits for the one listener of endpoint square to be as it should.
func (b *bundle) listed(what string, as func(wire.Listener) bool) wire.Listener {
	b.t.Helper()
	var found wire.Listener
	eventually(b.t, what, func() bool {
		all, err := wire.Discover(b.ctx, b.nc, 100*time.Millisecond)
		check(b.t, err)
		for _, l := range all {
			if l.Endpoint == "square" && as(l) {
				found = l
				return true
			}
		}
		return false
	})
	return found
}

func TestListenersSayHowTheyAre(t *testing.T) {
	t.Parallel()
	b := setup(t)
	check(t, b.js.DeleteStream(b.ctx, wire.StreamWork))
	svc := b.service()
	check(t, HandleEach(svc, "square", squares, Concurrency(3)))
	stop := b.Run(svc)
	b.listed("it waits, and says what for", func(l wire.Listener) bool {
		return l.State == wire.StateWaiting && l.Reason == "waiting for a Tranche node to create stream "+wire.StreamWork
	})
	b.streams()
	b.listed("it listens", func(l wire.Listener) bool { return l.State == wire.StateListening && l.Reason == "" })
	b.reply("square", numbers(100))
	l := b.listed("the chunk is counted", func(l wire.Listener) bool { return l.Processed == 100 })
	if l.Rate <= 0 || l.P50 <= 0 || l.P99 < l.P50 || l.Concurrency != 3 || l.Stages != 0 || l.Errors != 0 {
		t.Errorf("after a chunk: %+v", l)
	}
	stats := svc.Stats()
	if len(stats) != 1 || stats[0].Endpoint != "square" || stats[0].Items != 100 || stats[0].Chunks != 1 {
		t.Errorf("stats: %+v", stats)
	}
	check(t, stop())
	if s := svc.Stats()[0]; s.State != wire.StateDraining {
		t.Errorf("after the end: %+v", s)
	}
}
