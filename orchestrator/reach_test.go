package orchestrator_test

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/testenv"
	"github.com/tranchehq/tranche/workqueue/start"
)

// A node whose connection to NATS stands and carries nothing claims nothing more, once it has noticed: what it gives
// back is there for the nodes that can publish it. It goes on when the server is heard again.
func TestAStalledNodeClaimsNothing(t *testing.T) {
	t.Parallel()
	b := serversOnly(t, testenv.Pool(t), embedded.NATSConfig{})
	at, err := url.Parse(b.ns.URL())
	if err != nil {
		t.Fatal(err)
	}
	toNATS := testenv.NewProxy(t, at.Host)
	stalled := b.join(t, b.store, testenv.Dial(t, "nats://"+toNATS.Addr()), testConfig(t))
	b.node = stalled.Node
	wantReady(t, b.node)
	l := newLedger(size)
	close(l.gate)
	b.serve(t, "statement", l.handle)
	toNATS.Stall()
	run := b.start(t, patient(), size)
	noticed := func(times int64) func() bool {
		return func() bool { return stalled.Stats().Unreachable >= times }
	}
	until(t, "it has noticed", noticed(1))
	claims := stalled.Stats().Claims
	if claims == 0 {
		t.Fatal("it had claimed nothing")
	}
	until(t, "it has asked again and again", noticed(5))
	if now := stalled.Stats().Claims; now != claims {
		t.Errorf("it claimed %d times more", now-claims)
	}
	toNATS.Heal()
	b.wantSound(t, l, run, size)
	if err := stalled.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
}

// A node that stops marks what others held as sent once they let go of it, and ends.
func TestStopMarksWhatWasHeld(t *testing.T) {
	t.Parallel()
	b := serversOnly(t, testenv.Pool(t), embedded.NATSConfig{})
	at, err := url.Parse(b.ns.URL())
	if err != nil {
		t.Fatal(err)
	}
	toNATS := testenv.NewProxy(t, at.Host)
	leaving := b.join(t, b.store, testenv.Dial(t, "nats://"+toNATS.Addr()), testConfig(t))
	b.node = leaving.Node
	toNATS.Stall()
	b.start(t, patient(), 100)
	hold, err := b.pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = hold.Rollback(context.WithoutCancel(t.Context())) }() // when the test ends early
	until(t, "its slice is claimed, and held", func() bool {
		held, err := hold.Exec(t.Context(), `SELECT FROM work_slice WHERE state = 'claimed' FOR UPDATE`)
		return err == nil && held.RowsAffected() == 1
	})
	toNATS.Heal()
	until(t, "the request is in the stream", func() bool { return leaving.Stats().Requests == 1 })
	leaving.leave()
	<-time.After(300 * time.Millisecond) // the way to the marking closes; when it has not yet, the test shows less
	if err := hold.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- leaving.stop() }()
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("stop: %v", err)
		}
	case <-time.After(stuck):
		t.Fatal("the node does not stop")
	}
	var sent int
	err = b.pool.QueryRow(t.Context(), `SELECT count(*) FROM work_slice WHERE state = 'sent'`).Scan(&sent)
	if err != nil || sent != 1 {
		t.Errorf("%d slices are marked as sent (%v)", sent, err)
	}
}

// A server that reads nothing of what is written to it keeps the node from nothing else: its session lives on.
func TestAServerThatReadsNothing(t *testing.T) {
	t.Parallel()
	b := serversOnly(t, testenv.Pool(t), embedded.NATSConfig{})
	at, err := url.Parse(b.ns.URL())
	if err != nil {
		t.Fatal(err)
	}
	toNATS := testenv.NewProxy(t, at.Host)
	cfg := testConfig(t)
	cfg.SessionTTL = 12 * time.Second
	options := append(endpoints.Options(), nats.Timeout(nats.DefaultTimeout))
	stalled := b.join(t, b.store, testenv.Dial(t, "nats://"+toNATS.Addr(), options...), cfg)
	b.node = stalled.Node
	l := newLedger(size)
	close(l.gate)
	b.serve(t, "statement", l.handle)
	b.outcome(t, b.start(t, patient(), 10), 1) // it knows the endpoint now
	toNATS.Stall()
	req := patient()
	req.Steps[0].Chunk, req.Steps[0].InFlight = 1, 60
	const large = 60 // items of 512 KiB: more than the system takes in between
	loaded, err := b.node.Starts().Start(t.Context(), req, largeItems(large, 512<<10))
	if err != nil {
		t.Fatal(err)
	}
	session := stalled.Session()
	var lives bool
	until(t, "its session would have ended", func() bool {
		var over bool
		err := b.pool.QueryRow(t.Context(), `SELECT started_at + interval '24 seconds' < clock_timestamp(),
			expires_at > clock_timestamp() FROM node_session WHERE id = $1`, session).Scan(&over, &lives)
		return err == nil && over
	})
	if !lives {
		t.Error("its session has ended")
	}
	toNATS.Heal()
	if done, failed := b.outcome(t, loaded.Run, 1); done != large || failed != 0 {
		t.Errorf("done %d, failed %d", done, failed)
	}
	if err := stalled.stop(); err != nil {
		t.Errorf("stop: %v", err)
	}
}

// largeItems are items with a payload of so many bytes each.
func largeItems(n, bytes int) func(*start.LoadItem) error {
	padding, next := strings.Repeat("x", bytes), items(n)
	return func(item *start.LoadItem) error {
		err := next(item)
		item.Payload = fmt.Appendf(nil, `{"id":%q,"padding":%q}`, item.Key, padding)
		return err
	}
}
