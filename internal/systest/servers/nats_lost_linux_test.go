package servers

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

// purge purges a stream until that took something out of it.
func (w *world) purge(name string) {
	w.Helper()
	w.until("something was purged from "+name, func() bool {
		stream := testenv.Must(w.js.Stream(w.Context(), name))(w)
		before := testenv.Must(stream.Info(w.Context()))(w)
		if before.State.Msgs == 0 {
			return false
		}
		testenv.NoError(w, stream.Purge(w.Context()))
		after, err := stream.Info(w.Context())
		return err == nil && after.State.FirstSeq > before.State.FirstSeq
	})
}

// gate is a service that waits with its answers.
type gate struct {
	mu     sync.Mutex
	came   int
	opened chan struct{}
}

func (g *gate) handle(ctx context.Context, chunk *nodetest.Chunk) error {
	g.mu.Lock()
	g.came++
	g.mu.Unlock()
	select {
	case <-g.opened:
		return nodetest.Echo(ctx, chunk)
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (g *gate) handed() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.came
}

// wantLost checks that what was lost was reissued for that reason, at no cost.
func (w *world) wantLost(run workqueue.RunID, since time.Time) {
	w.Helper()
	causes := w.causes(run)
	w.Logf("complete after %s: %v", time.Since(since), causes)
	if causes["lost"] == 0 {
		w.Error("nothing was reissued because it was lost")
	}
	testenv.Same(w, w.number(`SELECT count(*) FROM work_slice WHERE run_id = $1 AND cause NOT IN ('ready', 'lost')`, run),
		0, "slices were made for another reason")
	testenv.Same(w, w.number(`SELECT count(*) FROM work_slice WHERE run_id = $1 AND failures > 0`, run), 0,
		"slices that it cost attempts")
}

// Replies are purged that no node has read yet, in the middle of a run whose deadlines are far.
func TestRepliesArePurged(t *testing.T) {
	t.Parallel()
	w := setup(t, testenv.NATS(t).URL())
	g := &gate{opened: make(chan struct{})}
	w.service("statement", g.handle)
	stop := w.node()
	const items = 4_000
	run := w.start("statement", items, 100, 16)
	w.until("requests are with the service", func() bool {
		return w.number(`SELECT count(*) FROM work_slice WHERE run_id = $1 AND state = 'sent'`, run) == 16 && g.handed() > 0
	})
	stop()
	close(g.opened)
	w.until("the service has answered all of them", func() bool {
		stream, err := w.js.Stream(w.Context(), wire.StreamWork)
		return err == nil && stream.CachedInfo().State.Msgs == 0
	})
	w.purge(wire.StreamReply)
	purged := time.Now()
	w.node()
	w.node()
	w.wantSound(run, items)
	w.wantLost(run, purged)
}

func (w *world) held(name string) uint64 {
	w.Helper()
	stream := testenv.Must(w.js.Stream(w.Context(), name))(w)
	return stream.CachedInfo().State.Msgs
}

// states returns how many states of the flow letter are stored, beside what else the stream keeps.
func (w *world) states() int {
	w.Helper()
	stream := testenv.Must(w.js.Stream(w.Context(), wire.StreamFlow))(w)
	info := testenv.Must(stream.Info(w.Context(), jetstream.WithSubjectFilter("tranche.flow.letter.>")))(w)
	return len(info.State.Subjects)
}

// What a suspended chunk waits for is purged: its state, what its flow has asked, or the answers.
func TestAFlowLosesWhatItWaitsFor(t *testing.T) {
	t.Parallel()
	const items, out = 1_600, 16 // requests
	for name, lose := range map[string]func(w *world, g *gate){
		"the states": func(w *world, g *gate) {
			w.flow("letter", "statement")
			w.service("statement", g.handle)
			w.until("the chunks are suspended", func() bool { return w.states() == out && g.handed() > 0 })
			w.purge(wire.StreamFlow)
			close(g.opened)
		},
		"the questions": func(w *world, g *gate) {
			w.flow("letter", "statement")
			w.until("the chunks are suspended, and no one answers", func() bool {
				return w.states() == out && w.number(
					`SELECT count(*) FROM work_slice WHERE state = 'sent' AND delivered_at IS NOT NULL`) == out &&
					w.held(wire.StreamWork) == out
			})
			w.purge(wire.StreamWork)
			close(g.opened)
			w.service("statement", g.handle)
		},
		"the answers": func(w *world, g *gate) {
			stop := w.flow("letter", "statement")
			w.service("statement", g.handle)
			w.until("the chunks are suspended", func() bool {
				return w.states() == out && w.held(wire.StreamWork) == out && g.handed() > 0
			})
			stop()
			close(g.opened)
			w.until("the answers wait", func() bool { return w.held(wire.StreamStage) == out })
			w.purge(wire.StreamStage)
			w.flow("letter", "statement")
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := setup(t, testenv.NATS(t).URL())
			w.node()
			w.node()
			run := w.start("letter", items, items/out, out)
			lose(w, &gate{opened: make(chan struct{})})
			purged := time.Now()
			w.wantSound(run, items)
			w.wantLost(run, purged)
		})
	}
}

// Nothing is reissued without a fault, however long services take, however many there are, and however many nodes.
func TestNothingIsLostWithoutAFault(t *testing.T) {
	t.Parallel()
	w := setup(t, testenv.NATS(t).URL())
	for range 3 {
		w.node()
	}
	const long = 14 * time.Second // more than it takes to look twice, to settle and to go three laps
	w.service("statement", slow(long), endpoints.Concurrency(100))
	w.service("quick", slow(time.Millisecond))
	w.service("quick", slow(time.Second))
	w.flow("letter", "statement")
	w.flow("outer", "letter")
	slowly, quickly := w.start("statement", 1_000, 10, 100), w.start("quick", 20_000, 20, 50)
	flows, nested := w.start("letter", 300, 10, 30), w.start("outer", 300, 10, 30)
	for run, items := range map[workqueue.RunID]int{slowly: 1_000, quickly: 20_000, flows: 300, nested: 300} {
		w.wantSound(run, items)
		testenv.Same(t, w.number(`SELECT count(*) FROM work_slice WHERE run_id = $1 AND attempt > 1`, run), 0,
			"slices were reissued: %v", w.causes(run))
	}
}
