package orchestrator_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

// The deadline of a slice counts from when a service has it in its hands. A queue of requests before a slow service,
// far longer than their deadline, makes nothing late.
func TestDeadlineCountsFromTheHandOut(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const work, timeout, chunks, chunk = 400 * time.Millisecond, 5 * time.Second, 30, 10
	l := newLedger(0)
	svc, err := endpoints.New(testenv.Conn(t, b.ns), endpoints.Config{Name: "slow", Version: "1.0.0",
		Log: zaptest.NewLogger(t)})
	if err != nil {
		t.Fatal(err)
	}
	slow := func(ctx context.Context, c *endpoints.Chunk[account, statement]) error {
		select {
		case <-time.After(work):
			return l.handle(ctx, c)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	if err := endpoints.HandleList(svc, "statement", slow, endpoints.Concurrency(1)); err != nil {
		t.Fatal(err)
	}
	run(t, "service", svc.Run)
	req := request("statement")
	req.Steps[0].Chunk, req.Steps[0].InFlight, req.Steps[0].Timeout = chunk, 2*chunks, timeout
	start := time.Now()
	id := b.start(t, req, chunks*chunk)
	b.wantSound(t, l, id, chunks*chunk)
	l.wantOnce(t, id, chunks*chunk)
	if took := time.Since(start); took < 2*timeout {
		t.Errorf("the run took %s: nothing waited past its deadline", took)
	}
	if s := b.node.Stats(); s.Expired+s.Released+s.Stale != 0 || s.Slices != chunks {
		t.Errorf("without a fault: %+v", s)
	}
}

// Somebody deletes an endpoint's consumer while no service listens. The requests lie in the stream and wait, however
// often their deadline passes; a service that comes later does each of them once.
func TestRequestsOutliveTheirConsumer(t *testing.T) {
	t.Parallel()
	b := setup(t)
	js, err := jetstream.New(b.nc)
	if err != nil {
		t.Fatal(err)
	}
	req := request("statement")
	req.Steps[0].Chunk, req.Steps[0].Timeout = 10, 4*time.Second
	id := b.start(t, req, 20)
	b.sent(t, id, 2)
	if err := js.DeleteConsumer(t.Context(), endpoints.StreamWork, endpoints.ConsumerName("statement")); err != nil {
		t.Fatal(err)
	}
	until(t, "deadlines have passed three times", func() bool { return b.node.Stats().Extended >= 6 })
	l := newLedger(0)
	b.serve(t, "statement", l.handle)
	b.wantSound(t, l, id, 20)
	l.wantOnce(t, id, 20)
	if s := b.node.Stats(); s.Expired != 0 || s.Slices != 2 {
		t.Errorf("nothing was handed to anybody, and yet: %+v", s)
	}
}

// A final message has a slot for a foreign item and a second one for another, and leaves items out: they come again at
// once, not at the deadline.
func TestItemsBehindForeignSlotsComeAgainAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	f, slices := b.forge(t, 10, 10)
	first := slices[0].ID
	asked := b.items(t, first)
	f.publish(t, f.reply(first, 10, body(append(asked[:8:8], asked[0], 5000)...)))
	var again []workqueue.SliceID
	until(t, "the items left out are sent again", func() bool {
		rest := `SELECT coalesce(array_agg(id), '{}') FROM work_slice WHERE run_id = $1 AND state = 'sent' AND id <> $2`
		err := b.pool.QueryRow(t.Context(), rest, f.run, first).Scan(&again)
		return err == nil && len(again) == 1
	})
	rest := b.items(t, again[0])
	if len(rest) != 2 || rest[0] != asked[8] || rest[1] != asked[9] {
		t.Errorf("items %v came again; want %v", rest, asked[8:])
	}
	f.publish(t, f.reply(again[0], 2, body(rest...)))
	if done, failed := b.outcome(t, f.run, 1); done != 10 || failed != 0 {
		t.Errorf("done %d, failed %d; want 10 done", done, failed)
	}
	if r := b.reasons(t); r["foreign_ordinal"] != 1 || b.node.Stats().Expired != 0 {
		t.Errorf("quarantine %v, expired %d", r, b.node.Stats().Expired)
	}
	b.wantRight(t, f.run, 10)
	b.check(t)
}
