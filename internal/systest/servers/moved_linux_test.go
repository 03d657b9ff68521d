package servers

import (
	"testing"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// The database moves to another server by a dump, while the nodes are stopped and the service goes on.
func TestADumpIsRestoredElsewhere(t *testing.T) {
	t.Parallel()
	old, other := testenv.Postgres(t), testenv.Postgres(t)
	w := setupPast(t, old.URL())
	b := w.untilPoint()
	w.stopNodes()
	w.upTo(0)
	w.url = old.DumpTo(t, other, "moved")
	old.Stop(t)
	w.start()
	w.wantSound(w.url, "long", b.long, items)
	w.wantSound(w.url, "short", b.short, 2*chunk)
	w.wantInvariants(w.url)
	if n := w.number(w.url, `SELECT count(*) FROM database_rewind WHERE lost`); n != 0 {
		t.Errorf("%d gaps are told of", n)
	}
}

// The nodes and the service move to another NATS, which has nothing of what was out.
func TestANewNATS(t *testing.T) {
	t.Parallel()
	w := setupPast(t, testenv.Postgres(t).URL())
	b := w.untilPoint() // the service waits, so that requests are out
	w.stopNodes()
	w.upTo(0)
	w.ns = testenv.NATS(t)
	w.serve()
	w.start()
	w.wantSound(w.url, "long", b.long, items)
	w.wantSound(w.url, "short", b.short, 2*chunk)
	w.wantInvariants(w.url)
}
