package servers

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	healthstore "github.com/tranchehq/tranche/workqueue/health"
)

// tooLate is how long after there is room again a run may take, beside what it has to do.
const tooLate = 30 * time.Second

// slowUntil takes a second for each chunk until the disk is full, so that the run is not over before, however late that
// comes.
func slowUntil(full *atomic.Bool) func(context.Context, *nodetest.Chunk) error {
	return paced(func() time.Duration {
		if full.Load() {
			return 50 * time.Millisecond
		}
		return time.Second
	})
}

// JetStream's disk is full in the middle of a run. The server keeps the write error permanently: the run goes on
// because its streams are replaced.
func TestTheDiskIsFull(t *testing.T) {
	t.Parallel()
	for name, private := range map[string]bool{"nats-server": false, "the private server": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := startOnDisk(t, private)
			w := setup(t, ns.URL())
			w.node()
			w.node()
			full := new(atomic.Bool)
			w.service("statement", slowUntil(full))
			const items = 20_000
			run := w.start("statement", items, 100, 16)
			w.until("the run is in progress", func() bool { return w.done(run) >= 1_000 })
			ns.FillDisk(t)
			w.until("the server could not write", func() bool { return ns.Said("write error") })
			full.Store(true)
			done := w.done(run)
			w.until("the leader finds no room", func() bool {
				return w.number(`SELECT count(*) FROM stream_fault WHERE detail <> ''`) > 0
			})
			nc := w.dial()
			w.until("everybody is told of the disk", func() bool { return w.tellsOfDisk(run, nc) })
			ns.FreeDisk(t)
			room := time.Now()
			w.until("it goes on", func() bool { return w.done(run) > done+1_000 })
			if took := time.Since(room); took > tooLate {
				t.Errorf("it went on %s after there was room", took)
			}
			w.wantSound(run, items)
			w.until("every stream takes messages", func() bool { return w.number(`SELECT count(*) FROM stream_fault`) == 0 })
			w.wantUnblamed(run)
			t.Logf("complete %s after there was room: %v", time.Since(room), w.causes(run))
		})
	}
}

// The disk was full for a moment only. No one would know, but that nothing is stored since.
func TestTheDiskWasFullForAMoment(t *testing.T) {
	t.Parallel()
	ns := startOnDisk(t, false)
	w := setup(t, ns.URL())
	w.node()
	full := new(atomic.Bool)
	w.service("statement", slowUntil(full))
	const items = 20_000
	run := w.start("statement", items, 100, 16)
	w.until("the run is in progress", func() bool { return w.done(run) >= 1_000 })
	ns.FillDisk(t)
	w.until("the server could not write requests", func() bool {
		w.publish(wire.WorkSubject("nobody"), "R1") // all that the run may have out may be out
		return ns.Said("[TRANCHE_WORK] Critical write error")
	})
	full.Store(true)
	ns.FreeDisk(t)
	room := time.Now()
	w.wantSound(run, items)
	w.wantUnblamed(run)
	if n := w.number(`SELECT epoch FROM stream_epoch`); n < 2 {
		t.Error("no stream was replaced")
	}
	t.Logf("complete %s after there was room: %v", time.Since(room), w.causes(run))
}

// wantUnblamed checks that no item lost an attempt.
func (w *world) wantUnblamed(run workqueue.RunID) {
	w.Helper()
	if n := w.number(`SELECT count(*) FROM work_slice WHERE run_id = $1 AND failures > 0`, run); n != 0 {
		w.Errorf("it cost attempts in %d slices: %v", n, w.causes(run))
	}
}

// tellsOfDisk reports whether whoever asks is told of the disk, and of no service.
func (w *world) tellsOfDisk(run workqueue.RunID, nc *nats.Conn) bool {
	w.Helper()
	e := testenv.Must(healthstore.New(w.Store).Explain(w.Context(), run))(w)
	for _, g := range e.Groups {
		if g.Reason != healthstore.ReasonUnwritable || g.Owner != healthstore.OwnerOperator ||
			!strings.Contains(g.Why, "disk") || g.Who != "whoever runs the NATS server" {
			w.Logf("%d items are explained by %s, whose turn it is is %s: %s", g.Items, g.Reason, g.Who, g.Why)
			return false
		}
	}
	watch := testenv.Must(health.New(health.Config{Store: w.Store, NC: nc, Host: "here"}))(w)
	defer watch.Wait()
	report := testenv.Must(watch.Report(w.Context()))(w)
	return len(e.Groups) > 0 && slices.ContainsFunc(report.Conditions, func(c healthstore.Condition) bool {
		return c.Kind == healthstore.Disk && c.Severity == healthstore.Critical && strings.Contains(c.Detail, "full disk")
	})
}
