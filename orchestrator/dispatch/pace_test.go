package dispatch_test

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// paceOf returns what is stored about the pace of an endpoint, and the reasons of its changes, oldest first.
func (b *bundle) paceOf(t *testing.T, endpoint string) (inFlight int, rate float64, chunk int, changes []string) {
	t.Helper()
	err := b.Pool.QueryRow(t.Context(), `
		SELECT in_flight, coalesce(rate, 0), coalesce(chunk, 0),
		       (SELECT coalesce(array_agg(format('%s %s → %s: %s', what, before, after, reason) ORDER BY id), '{}')
		        FROM endpoint_change c WHERE c.endpoint = p.endpoint)
		FROM endpoint_pace p WHERE endpoint = $1`, endpoint).Scan(&inFlight, &rate, &chunk, &changes)
	testenv.NoError(t, err)
	return inFlight, rate, chunk, changes
}

func TestTheQueueInFrontOfASlowServiceIsKeptShort(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.Serve(t, "slow", func(ctx context.Context, chunk *nodetest.Chunk) error {
		if err := backoff.Sleep(ctx, 150*time.Millisecond); err != nil {
			return err
		}
		return nodetest.Echo(ctx, chunk)
	}, endpoints.Concurrency(2))
	req := nodetest.Request("slow") // of a run that leaves its pace to the nodes
	step := &req.Steps[0]
	step.InFlightAuto, step.InFlight, step.MaxAttempts, step.Chunk = true, 1024, 50, 20
	run := b.Start(t, req, 1000) // four seconds of work, of which 16 requests are more than a second
	if done, failed := b.Outcome(t, run, 1); done != 1000 || failed != 0 {
		t.Fatalf("done %d, failed %d", done, failed)
	}
	inFlight, rate, _, changes := b.paceOf(t, "slow")
	if inFlight > 20 || rate != 0 {
		t.Errorf("%d in flight, rate %.0f: %s", inFlight, rate, strings.Join(changes, "; "))
	}
	// What the service says of itself may be heard before the queue is seen to be long. On a machine that was stalled
	// the queue is cut for another good reason.
	reasons := []string{"services say that they work on 2", "in the queue", "no request was answered"}
	if len(changes) == 0 || !slices.ContainsFunc(reasons, func(r string) bool { return strings.Contains(changes[0], r) }) {
		t.Errorf("changes %q", changes)
	}
	b.Check(t)
}
