package orchestrator

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/session"
)

// lease is the leader's lease as the store keeps it, with the nodes that want it, in a bubble.
type lease struct {
	sessionStore

	*testing.T
	mu         sync.Mutex
	held       workqueue.Lease
	until      time.Time
	precedence map[workqueue.SessionID]int
	away       bool // the store cannot be reached
	nodes      []*Node
}

// Lead implements sessionStore.
func (l *lease) Lead(_ context.Context, id workqueue.SessionID, ttl time.Duration) (workqueue.Lease, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.away {
		return workqueue.Lease{}, errors.New("no connection")
	}
	outranked := false
	for _, other := range l.precedence {
		outranked = outranked || other > l.precedence[id]
	}
	left := time.Until(l.until)
	if outranked || left > 0 && l.held.Session != id {
		return workqueue.Lease{}, &session.HeldError{Left: left, Outranked: outranked}
	}
	if left <= 0 || l.held.Session != id {
		l.held = workqueue.Lease{Session: id, Epoch: l.held.Epoch + 1}
	}
	l.until = time.Now().Add(ttl)
	return l.held, nil
}

// SetPrecedence implements sessionStore.
func (l *lease) SetPrecedence(_ context.Context, id workqueue.SessionID, precedence int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.precedence[id] = precedence
	return nil
}

// Resign implements sessionStore.
func (l *lease) Resign(context.Context, workqueue.Lease) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.until = time.Time{}
	return nil
}

func (l *lease) reachable(is bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away = !is
}

const ttl = 4 * time.Second

// join runs what a node does about leading, until it is told to stop.
func (l *lease) join(precedence int, tasks ...LeaderTask) (n *Node, stop func()) {
	ctx, cancel := context.WithCancel(l.Context())
	send := func(_ string, what []byte) error {
		for _, n := range l.nodes {
			n.woken(string(what))
		}
		return nil
	}
	n = &Node{sessions: l, core: &core.Core{Log: zaptest.NewLogger(l), Send: send},
		cfg: Config{LeaseTTL: ttl, Precedence: precedence}, elections: make(chan struct{}, 1), tasks: newLeaderTasks(tasks)}
	n.core.SetSession(workqueue.NewSessionID())
	l.nodes = append(l.nodes, n)
	var leading sync.WaitGroup
	leading.Go(func() { n.lead(ctx) })
	stop = func() { cancel(); leading.Wait() }
	synctest.Wait()
	return n, stop
}

// wantLeader checks who leads, by what the nodes say themselves.
func (l *lease) wantLeader(want *Node, epoch int64) {
	l.Helper()
	synctest.Wait()
	for _, n := range l.nodes {
		if leads := n.Leading(); (leads != nil) != (n == want) || leads != nil && leads.Epoch != epoch {
			l.Errorf("node %s leads: %+v; want that %t, in epoch %d", n.core.Session(), leads, n == want, epoch)
		}
	}
}

// compete runs a test about leading in a bubble.
func compete(t *testing.T, test func(*lease)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { test(&lease{T: t, precedence: map[workqueue.SessionID]int{}}) })
}

// A node that stops, or whose session is over, is followed immediately; one that is gone, when its lease has expired;
// and one that cannot reach the store leads no longer than its lease lives.
func TestALeaderIsFollowed(t *testing.T) {
	compete(t, func(l *lease) {
		first, stopFirst := l.join(0)
		second, stopSecond := l.join(0)
		<-time.After(10 * ttl)
		l.wantLeader(first, 1)
		stopFirst()
		l.wantLeader(second, 2)
		third, stopThird := l.join(0)
		second.core.SetSession(workqueue.NewSessionID())
		<-time.After(ttl / 4)
		stopSecond() // whichever of the two took it: the other one has it now
		l.nodes = l.nodes[2:]
		synctest.Wait()
		epoch := l.held.Epoch
		l.wantLeader(third, epoch)
		l.reachable(false)
		<-time.After(2 * ttl)
		l.reachable(true)
		<-time.After(ttl / 4)
		l.wantLeader(third, epoch+1)
		l.mu.Lock()
		l.held, l.until = workqueue.Lease{Session: workqueue.NewSessionID(), Epoch: epoch + 2}, time.Now().Add(ttl)
		l.mu.Unlock()
		<-time.After(ttl + leaseSlack)
		l.wantLeader(third, epoch+3)
		stopThird()
	})
}

// A node leaves leading to those with precedence, and leads where there is none. One that stops keeps no other from
// leading, however long what it does takes to end.
func TestNodesLeaveLeadingToThoseThatHavePrecedence(t *testing.T) {
	compete(t, func(l *lease) {
		lesser, stopLesser := l.join(0)
		l.wantLeader(lesser, 1)
		end := make(chan struct{})
		first, stopFirst := l.join(1, LeaderTask{"long", func(context.Context, workqueue.Lease) (time.Duration, error) {
			<-end
			return 0, nil
		}})
		<-time.After(ttl / 2)
		l.wantLeader(first, 2)
		stopped := make(chan struct{})
		go func() { stopFirst(); close(stopped) }()
		<-time.After(ttl / 4)
		l.wantLeader(lesser, 3)
		close(end)
		<-stopped
		second, stopSecond := l.join(1)
		<-time.After(ttl / 2)
		l.wantLeader(second, 4)
		stopSecond()
		l.wantLeader(lesser, 5)
		stopLesser()
	})
}

// A leader task that takes longer than the lease lives holds up neither the lease nor the others; one that panics or
// fails continues, and says so; each runs when it wants to, when it is woken, and once at a time, until its term ends.
func TestLeaderTasksDoNotHinderEachOther(t *testing.T) {
	compete(t, func(l *lease) {
		var slow, quick, within atomic.Int32
		var over atomic.Pointer[error]
		ended := func() error {
			if err := over.Load(); err != nil {
				return *err
			}
			return nil
		}
		n, stop := l.join(0,
			LeaderTask{"slow", func(ctx context.Context, _ workqueue.Lease) (time.Duration, error) {
				slow.Add(1)
				testenv.Same(l, within.Add(1), 1, "it runs twice at a time")
				defer within.Add(-1)
				select {
				case <-time.After(10 * ttl):
				case <-ctx.Done():
					cause := context.Cause(ctx)
					over.Store(&cause)
				}
				return ttl, nil
			}},
			LeaderTask{"panics", func(context.Context, workqueue.Lease) (time.Duration, error) { panic("a mistake\x00") }},
			LeaderTask{"quick", func(context.Context, workqueue.Lease) (time.Duration, error) {
				quick.Add(1)
				return time.Hour, nil
			}})
		n.WakeLeaderTask("quick")
		n.WakeLeaderTask("slow")
		<-time.After(5 * ttl)
		synctest.Wait()
		pulses := n.Leading().pulses()
		if d := pulses[0]; d.Running != 5*ttl || slow.Load() != 1 {
			l.Errorf("slow ran %d times: %+v", slow.Load(), d)
		}
		if d := pulses[1]; !d.Failing || d.Failures < 20 || d.LastError != "panic: a mistake" {
			l.Errorf("panics: %+v", d)
		}
		if d := pulses[2]; d.Runs != 2 || quick.Load() != 2 || d.Failing || d.Ended != 5*ttl {
			l.Errorf("quick ran %d times: %+v", quick.Load(), d)
		}
		<-time.After(5*ttl + time.Millisecond) // it was woken while it ran, and begins again
		if l.wantLeader(n, 1); slow.Load() != 2 {
			l.Errorf("slow ran %d times; want 2", slow.Load())
		}
		l.reachable(false)
		<-time.After(ttl)
		if synctest.Wait(); !errors.Is(ended(), context.Canceled) {
			l.Errorf("the task continues when the lease has expired: %v", ended())
		}
		l.reachable(true)
		<-time.After(ttl / 4)
		l.wantLeader(n, 2)
		over.Store(nil)
		l.mu.Lock() // the session expired unnoticed, and another node leads
		l.held.Session, l.until = workqueue.NewSessionID(), time.Now().Add(time.Hour)
		l.mu.Unlock()
		<-time.After(ttl / 4)
		if l.wantLeader(nil, 0); !errors.Is(ended(), context.Canceled) {
			l.Errorf("the task continued: %v", ended())
		}
		<-time.After(10 * ttl)
		if slow.Load() != 3 || quick.Load() != 3 {
			l.Errorf("slow ran %d times and quick %d, of a node that does not lead", slow.Load(), quick.Load())
		}
		stop()
	})
}

func TestLeaderTasksAreChecked(t *testing.T) {
	t.Parallel()
	noop := func(context.Context, workqueue.Lease) (time.Duration, error) { return 0, nil }
	for _, tasks := range [][]LeaderTask{
		{{Name: "", Run: noop}}, {{Name: "a"}}, {{Name: "a", Run: noop}, {Name: "a", Run: noop}},
		{{Name: taskSweep, Run: noop}},
	} {
		err := checkLeaderTasks(append([]LeaderTask{{taskSweep, noop}}, tasks...))
		testenv.Says(t, err, "Config.LeaderTasks", "%+v", tasks)
	}
}
