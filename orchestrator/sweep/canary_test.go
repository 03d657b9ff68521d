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

// What no service has received continues where requests go from then on, each item once, and leaves the stream.
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
			testenv.Must(b.Pool.Exec(t.Context(), `UPDATE work_slice SET deadline = tranche_now()`))(t)
			b.pass(t, 0)
			testenv.Same(t, b.Number(t, at, c.leaves), left, "requests at %s while it may get some", c.leaves)
			testenv.Same(t, b.Number(t, at+` AND state = 'expired'`, c.leaves), 0, "reissued")
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

// Requests that a service has taken are answered there, although the leader could not note yet that it has.
func TestTakenRequestsStay(t *testing.T) {
	t.Parallel()
	for what, acknowledged := range map[string]bool{"in the stream": false, "out of it": true} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			b := setupTimed(t)
			testenv.Must(b.Pool.Exec(t.Context(), `
				CREATE FUNCTION unnoted() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END';
				CREATE TRIGGER unnoted BEFORE UPDATE ON work_slice FOR EACH ROW
				WHEN (OLD.delivered_at IS NULL AND NEW.delivered_at IS NOT NULL) EXECUTE FUNCTION unnoted()`))(t)
			l, taken, hold := nodetest.NewLedger(0), make(chan struct{}, 16), make(chan struct{})
			b.Serve(t, "statement", func(ctx context.Context, chunk *nodetest.Chunk) error {
				taken <- struct{}{}
				<-hold
				return l.Handle(ctx, chunk)
			}, endpoints.Concurrency(16))
			b.Serve(t, "statement-v2", l.Handle)
			id := b.Start(t, nodetest.Patient(), nodetest.Size)
			b.Sent(t, id, 16)
			for range 16 {
				<-taken
			}
			if acknowledged {
				testenv.NoError(t, testenv.Must(b.JS(t).Stream(t.Context(), wire.StreamWork))(t).Purge(t.Context()))
			}
			b.canary(t, 100)
			testenv.Must(b.Pool.Exec(t.Context(), `UPDATE work_slice SET deadline = tranche_now()`))(t)
			b.pass(t, 0)
			close(hold)
			b.WantSound(t, l, id, nodetest.Size)
			l.WantOnce(t, id, nodetest.Size)
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
