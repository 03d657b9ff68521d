package systest

import (
	"syscall"
	"testing"
	"time"

	"github.com/tranchehq/tranche/orchestrator"
)

// leader returns the epoch of whoever leads; 0: nobody.
func (w *world) leader() int {
	w.Helper()
	return w.number(`SELECT coalesce(max(epoch), 0) FROM leader WHERE expires_at > clock_timestamp()`)
}

// takeover waits until an epoch has begun, and returns how long that took.
func (w *world) takeover(epoch int) time.Duration {
	w.Helper()
	began := time.Now()
	w.until("another node leads", func() bool { return w.leader() == epoch })
	return time.Since(began)
}

// Somebody leads again within 5 s of a kill, within 1 s of a clean stop; and a leader that was stopped for longer than
// its lease does not lead when it wakes up.
func TestTheLeaderIsKilledToldToEndAndStopped(t *testing.T) {
	t.Parallel()
	w := setup(t)
	lease := leaseVariable + "=" + orchestrator.DefaultLeaseTTL.String()
	killed := w.start("node", lease)
	w.takeover(1)
	leaving := w.start("node", lease)
	w.signal(killed, syscall.SIGKILL)
	if took := w.takeover(2); took >= 5*time.Second {
		t.Errorf("somebody leads %s after the kill; want 5s at the most", took)
	} else {
		t.Logf("after the kill: %s", took)
	}
	sleeper := w.start("node", lease)
	w.signal(leaving, syscall.SIGTERM)
	if took := w.takeover(3); took >= time.Second {
		t.Errorf("somebody leads %s after the stop; want 1s at the most", took)
	} else {
		t.Logf("after the clean stop: %s", took)
	}
	w.start("node", lease)
	w.signal(sleeper, syscall.SIGSTOP)
	t.Logf("after SIGSTOP: %s", w.takeover(4))
	w.signal(sleeper, syscall.SIGCONT)
	w.until("the sleeper counts its loss", func() bool {
		return w.number(`SELECT count(*) FROM node_session WHERE (stats->>'sessions_lost')::int > 0`) > 0
	})
	if epoch := w.leader(); epoch != 4 {
		t.Errorf("epoch %d began: the sleeper led again", epoch)
	}
	// Nodes say so with their heartbeat: the new leader's first may be yet to come, the sleeper's has come.
	w.until("just the new leader says that it leads", func() bool {
		return w.number(`SELECT count(*) FROM node_session WHERE stats ? 'duties' AND expires_at > clock_timestamp()
			AND ended_at IS NULL`) == 1
	})
}
