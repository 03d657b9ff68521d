package dispatch_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/start"
)

// A node whose connection to NATS stands and carries nothing claims nothing more, once it has noticed: what it gives
// back is there for the nodes that can publish it. It goes on when the server is heard again.
func TestAStalledNodeClaimsNothing(t *testing.T) {
	t.Parallel()
	b := &bundle{nodetest.ServersOnly(t)}
	nc, toNATS := testenv.DialThrough(t, b.NS)
	stalled := b.Join(t, b.Store, nc, nodetest.Config(t))
	b.Node = stalled.Node
	nodetest.WantReady(t, b.Node)
	l := nodetest.NewLedger(nodetest.Size)
	close(l.Gate)
	b.Serve(t, "statement", l.Handle)
	toNATS.Stall()
	run := b.Start(t, nodetest.Patient(), nodetest.Size)
	noticed := func(times int64) func() bool {
		return func() bool { return stalled.Stats().Unreachable >= times }
	}
	nodetest.Until(t, "it has noticed", noticed(1))
	claims := stalled.Stats().Claims
	if claims == 0 {
		t.Fatal("it had claimed nothing")
	}
	nodetest.Until(t, "it has asked again and again", noticed(5))
	if now := stalled.Stats().Claims; now != claims {
		t.Errorf("it claimed %d times more", now-claims)
	}
	toNATS.Heal()
	b.WantSound(t, l, run, nodetest.Size)
	if err := stalled.Stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
}

// A server that reads nothing of what is written to it keeps the node from nothing else: its session lives on.
func TestAServerThatReadsNothing(t *testing.T) {
	t.Parallel()
	b := &bundle{nodetest.ServersOnly(t)}
	cfg := nodetest.Config(t)
	cfg.SessionTTL = 20 * time.Second
	options := append(endpoints.Options(), nats.Timeout(nats.DefaultTimeout))
	nc, toNATS := testenv.DialThrough(t, b.NS, options...)
	stalled := b.Join(t, b.Store, nc, cfg)
	b.Node = stalled.Node
	l := nodetest.NewLedger(nodetest.Size)
	close(l.Gate)
	b.Serve(t, "statement", l.Handle)
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
	if done, failed := b.Outcome(t, loaded.Run, 1); done != large || failed != 0 {
		t.Errorf("done %d, failed %d", done, failed)
	}
	if err := stalled.Stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
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
