package systest

import (
	"context"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

// Infrastructure alone fails no item: with one attempt, item by item, while replies are purged again and again, nodes
// are killed and NATS is restarted.
func TestInfrastructureAloneFailsNothing(t *testing.T) {
	t.Parallel()
	w := setup(t)
	w.items = 1_500 // enough for replies to be there when a purge comes
	w.start("service")
	victim, other := w.start("node"), w.start("node")
	js, err := jetstream.New(testenv.Conn(t, w.ns))
	if err != nil {
		t.Fatal(err)
	}
	purging, stop := context.WithCancel(t.Context())
	defer stop()
	var purges sync.WaitGroup
	purges.Go(func() {
		for purging.Err() == nil {
			timed, cancel := context.WithTimeout(purging, time.Second)
			if replies, err := js.Stream(timed, wire.StreamReply); err == nil {
				_ = replies.Purge(timed) // while NATS is away there is nothing to purge
			}
			cancel()
		}
	})
	run := w.loadSteps(workqueue.StepSpec{Name: "statement", Endpoint: "statement",
		StepSettings: workqueue.StepSettings{Chunk: 1, MaxAttempts: 1}})
	w.short(run, 5*time.Second)
	const lost = `SELECT count(*) FROM work_slice WHERE error_code IN ('lost', 'deadline')`
	w.until("replies were lost", func() bool { return w.number(lost) > 3 || w.done(run) == w.items })
	w.signal(victim, syscall.SIGKILL)
	w.wantKilled(victim)
	if err := w.ns.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.start("node")
	w.signal(other, syscall.SIGKILL)
	w.wantKilled(other)
	before := w.number(lost)
	w.until("replies were lost again", func() bool { return w.number(lost) > before+3 || w.done(run) == w.items })
	stop()
	purges.Wait()
	w.wantSound(run)
	t.Logf("%d silences", w.number(lost))
	if w.number(lost) == 0 {
		t.Error("no reply was lost")
	}
	if n := w.number(`SELECT failed FROM batchrun WHERE id = $1`, run); n != 0 {
		t.Errorf("%d items failed", n)
	}
}

// short gives the requests of a run less time.
func (w *world) short(run workqueue.RunID, timeout time.Duration) {
	w.Helper()
	const shorten = `UPDATE run_step SET slice_timeout = $2 WHERE run_id = $1`
	if _, err := w.pool.Exec(w.Context(), shorten, run, timeout); err != nil {
		w.Fatal(err)
	}
}
