package systest

import (
	"syscall"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
)

// leader returns the epoch of whoever leads; 0: no one.
func (w *world) leader() int {
	w.Helper()
	return w.number(`SELECT coalesce(max(epoch), 0) FROM leader WHERE expires_at > tranche_now()`)
}

// led waits until someone leads, and returns in which epoch: a lease may run out that was prolonged late.
func (w *world) led() (epoch int) {
	w.Helper()
	w.until("someone leads", func() bool { epoch = w.leader(); return epoch > 0 })
	return epoch
}

// takeover waits until an epoch later than one has begun, and returns how long that took, without what the machine
// was stalled meanwhile.
func (w *world) takeover(before int) time.Duration {
	w.Helper()
	watch := testenv.NewWatch(w)
	w.until("another node leads", func() bool { return w.leader() > before })
	return watch.Ran()
}

// leadingNodes are nodes of which one leads. They have the times that nodes have unless told otherwise: who leads does
// not change because a machine is busy for a moment.
type leadingNodes struct {
	*world
	leads *process
}

func (n *leadingNodes) more() *process {
	n.Helper()
	return n.start("node", leaseVariable+"="+orchestrator.DefaultLeaseTTL.String(),
		sessionVariable+"="+orchestrator.DefaultSessionTTL.String())
}

// wantFollowed ends the leader and wants another one soon. A machine that is busy for a moment has three tries.
func (n *leadingNodes) wantFollowed(by syscall.Signal, within time.Duration) {
	n.Helper()
	var took time.Duration
	for range 3 {
		last, next, before := n.leads, n.more(), n.led()
		n.signal(last, by)
		took, n.leads = n.takeover(before), next
		n.Logf("after %s: %s", by, took)
		if by == syscall.SIGTERM {
			n.await(last)
		}
		if took < within {
			return
		}
	}
	n.Errorf("someone leads %s after %s; want %s at most", took, by, within)
}

// Someone leads again within 5 s of a kill, within 1 s of a clean stop; and a leader that was stopped for longer than
// its lease does not lead when it wakes up.
func TestTheLeaderIsKilledToldToEndAndStopped(t *testing.T) {
	t.Parallel()
	w := &leadingNodes{world: setup(t)}
	w.leads = w.more()
	w.takeover(0)
	w.wantFollowed(syscall.SIGKILL, 5*time.Second)
	w.wantFollowed(syscall.SIGTERM, time.Second)
	// Whoever follows keeps the lease from then on, however slow the machine is.
	w.start("node", leaseVariable+"=1m", sessionVariable+"=1m")
	sleeper, before := w.leads, w.led()
	w.signal(sleeper, syscall.SIGSTOP)
	w.takeover(before)
	w.until("the sleeper's session is over", func() bool {
		return w.number(`SELECT count(*) FROM node_session WHERE id = '`+sleeper.session()+`'
			AND (ended_at IS NOT NULL OR expires_at < tranche_now())`) == 1
	})
	epoch := w.led()
	w.signal(sleeper, syscall.SIGCONT)
	w.until("the sleeper counts its loss", func() bool {
		return w.number(`SELECT count(*) FROM node_session WHERE (stats->>'sessions_lost')::int > 0`) > 0
	})
	if now := w.leader(); now != epoch {
		t.Errorf("epoch %d began after %d: the sleeper led again", now, epoch)
	}
	// Nodes say so with their heartbeat: the new leader's first may be yet to come, the sleeper's has come.
	w.until("just the new leader says that it leads", func() bool {
		return w.number(`SELECT count(*) FROM node_session WHERE stats ? 'leader_tasks' AND expires_at > tranche_now()
			AND ended_at IS NULL`) == 1
	})
}
