package systest

import (
	"context"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints"
)

// Someone calls beside a run, all the time, while the instances of the service are replaced one by one, told to end or
// killed: each call is answered, and the run is sound.
func TestCallsWhileServicesAreReplaced(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.items = 20_000
	run := w.load()
	// The two take 20 s for the run, however long this test may be held up meanwhile.
	start := func() *process { w.Helper(); return w.start("service", slowVariable+"=200ms") }
	running := []*process{start(), start()}
	w.start("node", sessionVariable+"=1m")
	end := w.callers(4)
	for n, how := range []syscall.Signal{syscall.SIGTERM, syscall.SIGTERM, syscall.SIGKILL, syscall.SIGKILL} {
		done := w.done(run)
		w.until("more is done", func() bool { return w.done(run) >= min(done+w.items/20, w.items) })
		if w.done(run) == w.items {
			t.Fatalf("the run was complete before end %d", n)
		}
		w.signal(running[n%2], how)
		w.await(running[n%2])
		running[n%2] = start()
	}
	answered := end()
	w.wantSound(run)
	t.Logf("%d calls were answered", answered)
	if answered < 20 {
		t.Errorf("%d calls were answered", answered)
	}
}

// callers has some call again and again until the returned function is called, which waits for their last answers and
// returns how many there were.
func (w *world) callers(n int) (end func() (answered int)) {
	w.Helper()
	nc, err := nats.Connect(w.ns.URL(), nats.Timeout(time.Minute))
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(nc.Close)
	stop := make(chan struct{})
	var all sync.WaitGroup
	counts := make([]int, n)
	for c := range n {
		all.Go(func() {
			for ; ; counts[c]++ {
				select {
				case <-stop:
					return
				default:
				}
				key := fmt.Sprintf("call-%d-%d", c, counts[c])
				ctx, cancel := context.WithTimeout(context.Background(), limit)
				got, err := endpoints.Call[account, statement](ctx, nc, "statement", key, account{ID: key})
				cancel()
				if err != nil || got.Of != key {
					w.Errorf("call %s: %+v, %v", key, got, err)
					return
				}
			}
		})
	}
	return func() (answered int) {
		close(stop)
		all.Wait()
		for _, count := range counts {
			answered += count
		}
		return answered
	}
}
