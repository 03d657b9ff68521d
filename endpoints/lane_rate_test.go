package endpoints

import (
	"context"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
)

// What is measured: chunks of items that take some time each, always so many of them under way, and calls beside them.
const (
	laneItem     = 2 * time.Millisecond
	laneItems    = 50 // of a chunk, which takes 100 ms then
	laneInFlight = 24
	laneEvery    = 20 * time.Millisecond // somebody calls
)

// TestCallsBesideARun measures how long calls take beside a run at full rate, and what they cost it. TRANCHE_CALLS says
// how many are measured: docs/benchmarks.md.
func TestCallsBesideARun(t *testing.T) { //nolint:paralleltest // it measures
	calls := 25
	n, err := strconv.Atoi(os.Getenv("TRANCHE_CALLS"))
	measured := err == nil
	if measured {
		calls = n
	} else {
		t.Parallel()
	}
	for _, tc := range []struct {
		name   string
		each   bool
		opts   []Option
		call   []CallOption
		noLane bool
	}{
		{"lists, 4 at once and a place kept, which is the default", false, []Option{Concurrency(4)}, nil, false},
		{"the same, direct", false, []Option{Concurrency(4)}, []CallOption{Direct()}, false},
		{"lists, 4 at once, no place kept", false, []Option{Concurrency(4), Reserve(0)}, nil, false},
		{"item by item, 4 at once, no place kept", true, []Option{Concurrency(4), Reserve(0)}, nil, false},
		{"lists, 4 at once, of a service that reads no lane", false, []Option{Concurrency(4), Reserve(0)}, nil, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if !measured {
				t.Parallel()
			}
			b, done := laneService(t, tc.each, tc.noLane, tc.opts...)
			const rounds = 5
			var alone, beside float64
			var took []time.Duration
			for range rounds {
				alone += laneRate(b, done, time.Duration(calls/rounds)*laneEvery) / rounds
				began, before := time.Now(), done.Load()
				took = append(took, laneCallers(b, calls/rounds, tc.call)...)
				beside += float64(done.Load()-before) / time.Since(began).Seconds() / rounds
			}
			slices.Sort(took)
			t.Logf("%d calls: p50 %s, p99 %s; items/s of the run: %.0f alone, %.0f beside them (%.1f%%)", len(took),
				took[len(took)/2].Round(time.Millisecond), took[len(took)*99/100].Round(time.Millisecond), alone, beside,
				100*beside/alone)
			// Ten times what a chunk takes here, which is a second where nothing else holds it up.
			bound := max(time.Second, time.Duration(10*4*laneItems/alone*float64(time.Second)))
			if p50 := took[len(took)/2]; !tc.noLane && p50 > bound {
				t.Errorf("half of the calls took over %s; want at most %s", p50, bound)
			}
		})
	}
}

// laneService runs a service with chunks enough, and counts their items.
func laneService(t *testing.T, each, noLane bool, opts ...Option) (*bundle, *atomic.Int64) {
	t.Helper()
	b := setup(t)
	done := &atomic.Int64{}
	work := func(in number) square {
		_ = backoff.Sleep(context.Background(), laneItem)
		if in.N >= 0 {
			done.Add(1)
		}
		return square{in.N}
	}
	svc := b.service()
	if each {
		check(t, HandleEach(svc, "run", func(_ context.Context, in number) (square, error) { return work(in), nil }, opts...))
	} else {
		check(t, HandleList(svc, "run", func(_ context.Context, c *Chunk[number, square]) error {
			for _, i := range c.Items() {
				i.Reply(work(i.In))
			}
			return nil
		}, opts...))
	}
	if noLane {
		svc.endpoints[0].Calls.Ensure = func(context.Context) error { return context.DeadlineExceeded }
	}
	b.Run(svc)
	eventually(t, "it has a lane", func() bool { return noLane || stream.HasLane(b.ctx, b.nc, "run") })
	replies, err := b.nc.SubscribeSync(wire.ReplySubject("run"))
	check(t, err)
	for range laneInFlight {
		b.ask("run", numbers(laneItems))
	}
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
				_, msg := b.request("run", numbers(laneItems))
				_, _ = b.js.PublishMsgAsync(msg)
			}
		}
	})
	eventually(t, "it is at work", func() bool { return done.Load() > 2*laneItems })
	return b, done
}

// laneRate is how many items are done a second.
func laneRate(b *bundle, done *atomic.Int64, span time.Duration) float64 {
	began, before := time.Now(), done.Load()
	_ = backoff.Sleep(b.ctx, span)
	return float64(done.Load()-before) / time.Since(began).Seconds()
}

// laneCallers has somebody call again and again, whether or not those before have been answered.
func laneCallers(b *bundle, calls int, opts []CallOption) []time.Duration {
	took := make([]time.Duration, calls)
	var all sync.WaitGroup
	for n := range calls {
		all.Go(func() {
			began := time.Now()
			if _, err := Call[number, square](b.ctx, b.nc, "run", "k", number{-1}, opts...); err != nil {
				b.t.Error(err)
			}
			took[n] = time.Since(began)
		})
		_ = backoff.Sleep(b.ctx, laneEvery)
	}
	all.Wait()
	return took
}
