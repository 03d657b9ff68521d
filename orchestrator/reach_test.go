package orchestrator_test

import (
	"net/url"
	"testing"

	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/testenv"
)

// A node whose connection to NATS stands and carries nothing claims nothing more, once it has noticed: what it gives back
// is there for the nodes that can publish it. It goes on when the server is heard again.
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
