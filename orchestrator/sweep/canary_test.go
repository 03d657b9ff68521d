package sweep_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/micro"

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
		change        func(t *testing.T, b *bundle, listens micro.Service)
		leaves, serve string
	}{
		"pulled back": {func(t *testing.T, b *bundle, _ micro.Service) { //nolint:thelper // a case
			b.canary(t, 0)
		}, "statement-v2", "statement"},
		"unheard": {func(t *testing.T, _ *bundle, listens micro.Service) { //nolint:thelper // a case
			testenv.NoError(t, listens.Stop())
		}, "statement-v2", "statement"},
		"all": {func(t *testing.T, b *bundle, _ micro.Service) { //nolint:thelper // a case
			b.canary(t, 100)
		}, "statement", "statement-v2"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := &bundle{nodetest.ServersOnly(t)}
			// It says that it listens, and takes nothing.
			listens := testenv.Must(micro.AddService(testenv.Conn(t, b.NS), micro.Config{Name: "busy", Version: "1.0.0",
				Metadata:     map[string]string{wire.MetaProtocol: wire.ProtocolVersion},
				StatsHandler: func(*micro.Endpoint) any { return struct{}{} }}))(t)
			testenv.NoError(t, listens.AddEndpoint("statement-v2", micro.HandlerFunc(func(micro.Request) {}),
				micro.WithEndpointSubject("status.statement-v2")))
			b.Node = b.StartNodeWith(t, orchestrator.Config{ReconcileInterval: 200 * time.Millisecond})
			b.canary(t, 50)
			id := b.Start(t, nodetest.Patient(), nodetest.Size)
			b.Sent(t, id, 16)
			at := `SELECT count(*) FROM work_slice WHERE endpoint = $1`
			left := b.Number(t, at, c.leaves)
			if left == 0 || left == 16 {
				t.Fatalf("%d of 16 requests are at %s", left, c.leaves)
			}
			c.change(t, b, listens)
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
	b.Serve(t, "statement-v2", func(context.Context, *nodetest.Chunk) error {
		<-over
		return errors.New("the test is over")
	}, endpoints.Concurrency(64))
	t.Cleanup(func() { close(over) })
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
