package dispatch_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/start"
)

// A server that reads nothing of what is written to it keeps the node from nothing else: its session lives on.
func TestAServerThatReadsNothing(t *testing.T) {
	t.Parallel()
	b := nodetest.ServersOnly(t)
	cfg := nodetest.Config(t)
	cfg.SessionTTL, cfg.Heartbeat = 20*time.Second, 100*time.Millisecond
	options := append(endpoints.Options(), nats.Timeout(nats.DefaultTimeout))
	nc, toNATS := testenv.DialThrough(t, b.NS, options...)
	stalled := b.Join(t, b.Store, nc, cfg)
	b.Node = stalled.Node
	b.Serve(t, "statement", nodetest.Echo)
	b.Outcome(t, b.Start(t, nodetest.Patient(), 10), 1) // it knows the endpoint now
	toNATS.Stall()
	req := nodetest.Patient()
	req.Steps[0].Chunk, req.Steps[0].InFlight = 1, 60
	const large = 60 // items of 512 KiB: more than the system takes in between
	loaded := testenv.Must(b.Node.Runs().Start(t.Context(), req, largeItems(large, 512<<10)))(t)
	session := stalled.Session()
	for range 4 { // without a heartbeat the session would have ended
		testenv.Advance(t, b.Pool, cfg.SessionTTL/2)
		nodetest.Until(t, "its session is prolonged", func() bool {
			return b.Number(t, `SELECT count(*) FROM node_session WHERE id = $1
				AND expires_at > tranche_now() + $2::interval * 0.9`, session, cfg.SessionTTL) == 1
		})
	}
	toNATS.Heal()
	b.Want(t, loaded.Run, 1, large, 0)
	testenv.Same(t, stalled.Stop(), nil, "stop")
}

// largeItems are items with a payload of so many bytes each.
func largeItems(n, bytes int) func(*start.LoadItem) error {
	padding, next := strings.Repeat("x", bytes), nodetest.Items(n)
	return func(item *start.LoadItem) error {
		err := next(item)
		item.Payload = fmt.Appendf(nil, `{"id":%q,"padding":%q}`, item.Key, padding)
		return err
	}
}

// An endpoint that cannot be published to, since someone else's consumer stands in its way, holds up no other. Once
// the obstacle is gone its run continues, and none of its items is to blame.
func TestEndpointInTheWayHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	b := nodetest.Setup(t)
	js := b.JS(t)
	const obstacle = "somebody"
	testenv.Must(js.CreateConsumer(t.Context(), wire.StreamWork, jetstream.ConsumerConfig{Durable: obstacle,
		FilterSubject: wire.WorkSubject("other"), AckPolicy: jetstream.AckExplicitPolicy}))(t)
	first := nodetest.Small("other")
	first.Priority, first.Steps[0].MaxAttempts = 1, 1
	blocked := b.Start(t, first, nodetest.Size)
	nodetest.Until(t, "slices could not be published", func() bool { return b.Node.Stats().Postponed > 0 })
	l := nodetest.NewLedger(0)
	b.Serve(t, "statement", l.Handle)
	free := b.Start(t, nodetest.Patient(), nodetest.Size)
	b.WantSound(t, l, free, nodetest.Size)
	testenv.NoError(t, js.DeleteConsumer(t.Context(), wire.StreamWork, obstacle))
	other := nodetest.NewLedger(0)
	b.Serve(t, "other", other.Handle)
	b.WantSound(t, other, blocked, nodetest.Size)
	other.WantOnce(t, blocked, nodetest.Size)
	testenv.Same(t, b.Node.Stats().Expired, 0, "slices had to wait for their deadline")
}

func TestTheQueueInFrontOfASlowServiceIsKeptShort(t *testing.T) {
	t.Parallel()
	b := nodetest.Setup(t)
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
	b.Want(t, run, 1, 1000, 0)
	var inFlight int
	var limited bool
	var changes []string
	testenv.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT in_flight, rate IS NOT NULL,
		(SELECT coalesce(array_agg(format('%s %s → %s: %s', what, before, after, reason) ORDER BY id), '{}')
		 FROM endpoint_change c WHERE c.endpoint = p.endpoint)
		FROM endpoint_pace p WHERE endpoint = 'slow'`).Scan(&inFlight, &limited, &changes))
	if inFlight > 20 || limited {
		t.Errorf("%d in flight, a rate: %t: %s", inFlight, limited, strings.Join(changes, "; "))
	}
	// What the service says of itself may be heard before the queue is seen to be long. On a machine that was stalled
	// the queue is cut for another good reason.
	reasons := []string{"services report room for 2", "in the queue", "no request was answered"}
	if len(changes) == 0 || !slices.ContainsFunc(reasons, func(r string) bool { return strings.Contains(changes[0], r) }) {
		t.Errorf("changes %q", changes)
	}
	b.Check(t)
}

func TestMain(m *testing.M) { testenv.Main(m) }
