package sweep_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue/pace"
)

func (b *bundle) canary(t *testing.T, share float64) {
	t.Helper()
	change := pace.EndpointChange{Endpoint: "statement", Canary: &pace.Canary{Endpoint: "statement-v2", Share: share}}
	testenv.Must(b.Node.Endpoints().ChangeEndpoint(t.Context(), change, "ann"))(t)
}

// What no service has received goes on where requests go from then on, each item once, and leaves the stream.
func TestRequestsLeaveACanary(t *testing.T) {
	t.Parallel()
	for what, c := range map[string]struct {
		change        func(t *testing.T, b *bundle)
		leaves, serve string
	}{
		"pulled back": {func(t *testing.T, b *bundle) { b.canary(t, 0) }, "statement-v2", "statement"}, //nolint:thelper // a case
		"unheard": {func(t *testing.T, b *bundle) { //nolint:thelper // a case
			testenv.NoError(t, pace.New(b.Store).NoteHeard(t.Context(), []string{"statement"}))
		}, "statement-v2", "statement"},
		"all": {func(t *testing.T, b *bundle) { b.canary(t, 100) }, "statement", "statement-v2"}, //nolint:thelper // a case
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := &bundle{nodetest.ServersOnly(t)}
			// The leader looks once who listens, before the test begins.
			b.Node = b.StartNodeWith(t, orchestrator.Config{ReconcileInterval: time.Hour})
			b.canary(t, 50)
			id := b.Start(t, nodetest.Patient(), nodetest.Size)
			b.Sent(t, id, 16)
			at := `SELECT count(*) FROM work_slice WHERE endpoint = $1`
			left := b.Number(t, at, c.leaves)
			if left == 0 || left == 16 {
				t.Fatalf("%d of 16 requests are at %s", left, c.leaves)
			}
			c.change(t, b)
			nodetest.Until(t, "they have left", func() bool {
				return b.Number(t, at+` AND state = 'expired' AND error_code = 'rerouted'`, c.leaves) == left
			})
			l := nodetest.NewLedger(0)
			b.Serve(t, c.serve, l.Handle)
			b.WantSound(t, l, id, nodetest.Size)
			l.WantOnce(t, id, nodetest.Size)
			testenv.Same(t, b.Number(t, at, c.leaves), left, "requests at %s", c.leaves)
			testenv.Same(t, b.lying(t, wire.StreamWork, wire.WorkSubject(c.leaves)), 0, "requests in the stream")
		})
	}
}

// A canary that takes requests and never answers costs them one timeout; the rest of the run does not wait for it.
func TestHungCanary(t *testing.T) {
	t.Parallel()
	b := setupTimed(t)
	over := make(chan struct{})
	t.Cleanup(func() { close(over) })
	b.Serve(t, "statement-v2", func(context.Context, *nodetest.Chunk) error {
		<-over
		return errors.New("the test is over")
	}, endpoints.Concurrency(64))
	b.canary(t, 50)
	l := nodetest.NewLedger(0)
	b.Serve(t, "statement", l.Handle)
	id := b.Start(t, nodetest.Patient(), nodetest.Size)
	nodetest.Until(t, "only the canary has something", func() bool {
		b.Node.WakeLeaderTask("sweep")
		return b.Number(t, `SELECT count(*) FROM work_slice WHERE state = 'recorded'`) > 0 &&
			b.Number(t, `SELECT count(*) FROM work_block WHERE has_ready`) == 0 && b.Number(t, `
			SELECT count(*) FROM work_slice WHERE state <> 'recorded' AND (endpoint = 'statement' OR delivered_at IS NULL)`) == 0
	})
	b.pass(t, nodetest.Patient().Steps[0].Timeout)
	b.WantSound(t, l, id, nodetest.Size)
}
