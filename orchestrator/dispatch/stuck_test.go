package dispatch_test

import (
	"context"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/start"
)

// A long transaction, as of a re-run, has the step of one run. The others go on.
func TestLockedRunHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	b := setup(t)
	l := nodetest.NewLedger(0)
	b.Serve(t, "statement", l.Handle)
	// The run that is locked is the older and the more urgent one, and always has work to claim.
	first := nodetest.Small("other")
	first.Priority, first.Steps[0].InFlight = 1, 1
	locked := b.Start(t, first, nodetest.Size)
	b.Sent(t, locked, 1)
	tx, err := b.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	unlock := func() { _ = tx.Rollback(context.Background()) } // once is enough
	t.Cleanup(unlock)
	if _, err := tx.Exec(t.Context(), `SELECT 1 FROM run_step WHERE run_id = $1 FOR UPDATE`, locked); err != nil {
		t.Fatal(err)
	}
	free := b.Start(t, nodetest.Patient(), nodetest.Size)
	b.WantSound(t, l, free, nodetest.Size)
	unlock()
	other := nodetest.NewLedger(0)
	b.Serve(t, "other", other.Handle)
	b.WantSound(t, other, locked, nodetest.Size)
}

// An endpoint that cannot be published to, since somebody else's consumer stands in its way, holds up no other. Once
// the obstacle is gone its run goes on by itself, and none of its items is to blame.
func TestEndpointInTheWayHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	b := setup(t)
	js := b.JS(t)
	const obstacle = "somebody"
	if _, err := js.CreateConsumer(t.Context(), wire.StreamWork, jetstream.ConsumerConfig{Durable: obstacle,
		FilterSubject: wire.WorkSubject("other"), AckPolicy: jetstream.AckExplicitPolicy}); err != nil {
		t.Fatal(err)
	}
	first := nodetest.Small("other")
	first.Priority, first.Steps[0].MaxAttempts = 1, 1
	blocked := b.Start(t, first, nodetest.Size)
	nodetest.Until(t, "slices could not be published", func() bool { return b.Node.Stats().Postponed > 0 })
	l := nodetest.NewLedger(0)
	b.Serve(t, "statement", l.Handle)
	free := b.Start(t, nodetest.Patient(), nodetest.Size)
	b.WantSound(t, l, free, nodetest.Size)
	if err := js.DeleteConsumer(t.Context(), wire.StreamWork, obstacle); err != nil {
		t.Fatal(err)
	}
	other := nodetest.NewLedger(0)
	b.Serve(t, "other", other.Handle)
	b.WantSound(t, other, blocked, nodetest.Size)
	other.WantOnce(t, blocked, nodetest.Size)
	if n := b.Node.Stats().Expired; n != 0 {
		t.Errorf("%d slices had to wait for their deadline", n)
	}
}

// A claim was committed and its node never heard of it. The session lives on, so that nobody gives the slice back. It
// is issued again when it has been claimed for too long, and its items are not to blame.
func TestClaimThatItsNodeNeverHeardOf(t *testing.T) {
	t.Parallel()
	b := &bundle{nodetest.ServersOnly(t, testenv.Pool(t), embedded.NATSConfig{})}
	session, err := session.New(b.Store).StartSession(t.Context(), session.NodeInfo{Host: "deaf", PID: 1, Version: "test"},
		time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	req := nodetest.Patient()
	req.Session, req.Steps[0].MaxAttempts = session, 1
	loaded, err := start.New(b.Store).Load(t.Context(), req, nodetest.Items(1000))
	if err != nil {
		t.Fatal(err)
	}
	claimed, err := dispatch.New(b.Store).Claim(t.Context(), dispatch.ClaimRequest{Session: session, Run: loaded.Run,
		MaxSlices: 3,
		MaxBytes:  1 << 20, TTL: time.Second})
	if err != nil || len(claimed.Slices) != 3 {
		t.Fatalf("claimed %d slices, %v; want 3", len(claimed.Slices), err)
	}
	b.Node = b.StartNode(t)
	l := nodetest.NewLedger(0)
	b.Serve(t, "statement", l.Handle)
	b.WantSound(t, l, loaded.Run, 1000)
	l.WantOnce(t, loaded.Run, 1000)
	var again int
	err = b.Pool.QueryRow(t.Context(), `SELECT count(*) FROM work_slice WHERE run_id = $1 AND parent IS NOT NULL
		AND attempt = 2 AND failures = 0`, loaded.Run).Scan(&again)
	if err != nil || again != 3 {
		t.Errorf("%d slices were issued again without a failure, %v; want 3", again, err)
	}
	if n := b.Node.Stats().Expired; n != 0 {
		t.Errorf("%d slices count as late", n)
	}
}
