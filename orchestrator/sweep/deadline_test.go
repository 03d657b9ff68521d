package sweep_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/pace"
)

// The deadline of a slice counts from when a service has it in its hands. A queue of requests before a slow service,
// far longer than their deadline, makes nothing late.
func TestDeadlineCountsFromTheHandOut(t *testing.T) {
	t.Parallel()
	b := setupTimed(t)
	const work, timeout, chunks, chunk = 3 * time.Second, 15 * time.Second, 12, 10
	l := nodetest.NewLedger(0)
	svc := testenv.Must(endpoints.New(testenv.Conn(t, b.NS), endpoints.Config{Name: "slow", Version: "1.0.0",
		Log: zaptest.NewLogger(t)}))(t)
	inHand, done, all := make(chan struct{}), make(chan struct{}), make(chan struct{})
	slow := func(ctx context.Context, c *nodetest.Chunk) error {
		for _, signal := range []chan struct{}{inHand, done} {
			select {
			case signal <- struct{}{}:
			case <-all:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		return l.Handle(ctx, c)
	}
	testenv.NoError(t, endpoints.HandleList(svc, "statement", slow, endpoints.Concurrency(1)))
	nodetest.Run(t, "service", svc.Run)
	req := nodetest.Request("statement")
	req.Steps[0].Chunk, req.Steps[0].InFlight, req.Steps[0].Timeout = chunk, 2*chunks, timeout
	id := b.Start(t, req, chunks*chunk)
	b.Sent(t, id, chunks)
	for i := range chunks { // far longer than their deadline, all in all
		<-inHand
		nodetest.Until(t, "the leader knows who has it, and what has been done", func() bool {
			b.Node.WakeLeaderTask("sweep")
			return b.Number(t, `SELECT count(delivered_at) FROM work_slice`) > i &&
				b.Number(t, `SELECT count(*) FROM work_slice WHERE state = 'recorded'`) == i
		})
		b.pass(t, work)
		<-done
	}
	close(all)
	b.WantSound(t, l, id, chunks*chunk)
	l.WantOnce(t, id, chunks*chunk)
	// A reply that takes long to be recorded is delivered again.
	if s := b.Node.Stats(); s.Expired+s.Released != 0 || s.Stale > b.Again(t) || s.Slices != chunks || s.Extended == 0 {
		t.Errorf("without a fault: %+v", s)
	}
}

// Someone deletes an endpoint's consumer while no service listens. The requests lie in the stream and wait, however
// often their deadline passes; a service that comes later does each of them once.
func TestRequestsOutliveTheirConsumer(t *testing.T) {
	t.Parallel()
	b := setupTimed(t)
	js := b.JS(t)
	req := nodetest.Request("statement")
	req.Steps[0].Chunk = 10
	id := b.Start(t, req, 20)
	b.Sent(t, id, 2)
	testenv.NoError(t, js.DeleteConsumer(t.Context(), wire.StreamWork, wire.ConsumerName("statement")))
	for range 3 {
		b.pass(t, req.Steps[0].Timeout)
	}
	l := nodetest.NewLedger(0)
	b.Serve(t, "statement", l.Handle)
	b.WantSound(t, l, id, 20)
	l.WantOnce(t, id, 20)
	if s := b.Node.Stats(); s.Expired != 0 || s.Extended != 6 || s.Slices != 2 {
		t.Errorf("nothing was handed to anybody, and yet: %+v", s)
	}
}

// hangsAlone says whether a run is over, and whether one request, which a service has, has all that is not done of it.
const hangsAlone = `
SELECT r.state = 'completed', (SELECT count(*) = 1 AND bool_and(s.delivered_at IS NOT NULL) AND sum(bit_count(s.mask)) =
    (SELECT sum(k.size - bit_count(k.done | k.failed)) FROM work_block k WHERE k.run_id = r.id)
    FROM work_slice s WHERE s.run_id = r.id AND s.state = 'sent')
FROM batchrun r WHERE r.id = $1`

// A single item hangs its service, among good ones: it fails by its deadline, in a bounded time, and costs no more
// requests than an item that fails in another way.
func TestItemThatHangsFailsByItsDeadline(t *testing.T) {
	t.Parallel()
	b := setupTimed(t)
	const chunk, chunks, attempts, timeout = 8, 4, 2, 30 * time.Second
	l := nodetest.NewLedger(0)
	over := make(chan struct{})
	b.Serve(t, "statement", func(ctx context.Context, c *nodetest.Chunk) error {
		for _, item := range c.Items() {
			if item.In.ID == "C13" {
				<-over // beyond the deadline of the slice
				return errors.New("the test is over")
			}
		}
		return l.Handle(ctx, c)
	}, endpoints.Concurrency(64))
	t.Cleanup(func() { close(over) })
	req := nodetest.Request("statement")
	req.Steps[0].Chunk, req.Steps[0].MaxAttempts, req.Steps[0].Timeout = chunk, attempts, timeout
	id := b.Start(t, req, chunks*chunk)
	for over := false; !over; {
		nodetest.Until(t, "one request hangs, and nothing else is left", func() bool {
			b.Node.WakeLeaderTask("sweep")
			var hangs bool
			err := b.Pool.QueryRow(t.Context(), hangsAlone, id).Scan(&over, &hangs)
			return err == nil && (over || hangs)
		})
		if !over {
			b.pass(t, timeout)
		}
	}
	b.Want(t, id, 1, chunks*chunk-1, 1)
	failed := b.Number(t, `SELECT count(*) FROM work_result WHERE run_id = $1 AND error_code = 'deadline'`, id)
	testenv.Same(t, failed, 1, "failed with deadline")
	n := b.Number(t, `SELECT count(*) FROM work_slice WHERE run_id = $1 AND cause NOT IN ('ready', 'silence')`, id)
	// On a slow machine JetStream may not answer for a moment, and what is silent then is excused.
	excused := b.Number(t, `SELECT count(*) FROM work_slice WHERE run_id = $1 AND cause = 'silence'`, id)
	if n > 2*3+attempts || excused > pace.PatientProbes+1 {
		t.Errorf("%d extra slices, and %d that were excused; want at most %d and %d: %s", n, excused, 2*3+attempts,
			pace.PatientProbes+1, b.story(t, id))
	}
	b.Check(t)
}

// story tells what was asked of a run's services that was not answered, in the order of the requests.
func (b *bundle) story(t *testing.T, run workqueue.RunID) (text string) {
	t.Helper()
	testenv.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT string_agg(format(
			'%s of %s: %s, %s failures, sent %s, handed %s, ended %s', cause, bit_count(mask), error_code, failures,
			sent_at::time, delivered_at::time, ended_at::time), E'\n' ORDER BY created_at)
		FROM work_slice WHERE run_id = $1`, run).Scan(&text))
	return text
}
