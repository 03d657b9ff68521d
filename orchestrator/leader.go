package orchestrator

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/orchestrator/streams"
	"github.com/tranchehq/tranche/orchestrator/sweep"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	sessionstore "github.com/tranchehq/tranche/workqueue/session"
)

// What goes with wakeSubject beside its first meaning. Nothing depends on either: nodes look by themselves.
const (
	wakeElection = "lead"  // a leader has resigned: who wants to lead tries at once
	wakeTask     = "task " // and the leader task's name: the leader runs it now
)

// The leader tasks that every node has. Those of Config.LeaderTasks come beside them.
const (
	taskSweep      = "sweep"      // issues again what cannot come to an end by itself
	taskStalled    = "stalled"    // ends transactions of processes that have stopped in the middle of them
	taskClear      = "clear"      // takes back loads whose node is gone; gigabytes take minutes
	taskReconcile  = "reconcile"  // looks after endpoints and their consumers
	taskPace       = "pace"       // decides how fast endpoints are asked
	taskDeadlines  = "deadlines"  // paces runs so that they are done by their time
	taskWritable   = "writable"   // sees to it that the streams take messages
	taskLost       = "lost"       // issues again what was lost in a stream that looks whole
	taskCollectors = "collectors" // frees keys of nodes that are gone, and clears away what collectors need no more
	TaskStreams    = "streams"    // brings what is set for the streams to JetStream
	TaskRetention  = "retention"  // deletes what is past its limits
)

func (n *Node) ownLeaderTasks() []LeaderTask {
	sweeper := sweep.New(n.core, n.streams, n.consumers, n.watch, n.letters, n.runs,
		sweep.Config{LeaseTTL: n.cfg.LeaseTTL, Queues: n.queuesOf, FewQueues: fewQueues})
	return []LeaderTask{{taskSweep, sweeper.Sweeping}, {taskStalled, sweeper.EndingStalled}, {taskClear, sweeper.Clearing},
		{taskReconcile, n.consumers.Reconciling(n.letters.Sweeping())}, {TaskStreams, n.streams.Tending()},
		{taskWritable, n.streams.Trying()}, {taskLost, sweeper.FindingLost()}, {taskPace, n.pacing()},
		{taskDeadlines, n.deadlines()}, {TaskRetention, retaining(n.core)}, {taskCollectors, n.flushing.Tend}}
}

// sessionStore keeps sessions and the leader's lease.
type sessionStore interface {
	StartSession(ctx context.Context, node sessionstore.NodeInfo, ttl time.Duration) (workqueue.SessionID, error)
	Heartbeat(ctx context.Context, session workqueue.SessionID, ttl time.Duration, stats any) error
	Lead(ctx context.Context, session workqueue.SessionID, ttl time.Duration) (workqueue.Lease, error)
	SetPrecedence(ctx context.Context, session workqueue.SessionID, precedence int) error
	Resign(ctx context.Context, lease workqueue.Lease) error
}

// beatOfLease is the time between two prolongings.
func (c *Config) beatOfLease() time.Duration { return c.LeaseTTL / 4 }

// term is a time in which this node leads.
type term struct {
	lease workqueue.Lease
	end   context.CancelFunc
	over  <-chan struct{}
	// fuse ends the term when the lease has not been prolonged in time, as this node's own clock runs: it does not keep on
	// with what it could not commit.
	fuse *time.Timer
}

// lead tries for the lease and, while it has it, has the leader tasks done. It does nothing else itself, so that
// nothing keeps it from prolonging the lease. On a clean stop it resigns first of all.
func (n *Node) lead(ctx context.Context) {
	var now *term
	var tasks sync.WaitGroup
	defer tasks.Wait()
	for {
		var pause time.Duration
		now, pause = n.leadOnce(ctx, now, &tasks)
		next := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			next.Stop()
			n.withdraw(ctx)
			n.stepDown(ctx, now)
			return
		case <-next.C:
		case <-n.elections:
			next.Stop()
		}
	}
}

// leadOnce takes or prolongs the lease. It returns the term that goes on, or nil when others lead, and when to look
// again: at the latest when the lease of whoever leads runs out.
func (n *Node) leadOnce(ctx context.Context, had *term, tasks *sync.WaitGroup) (*term, time.Duration) {
	if had != nil && had.lease.Session != n.core.Session() {
		n.stepDown(ctx, had) // the session had expired: its successor need not wait for the end of the lease
		had = nil
	}
	timed, cancel := context.WithTimeout(ctx, n.cfg.LeaseTTL)
	defer cancel()
	asked := time.Now()
	lease, err := n.stand(timed)
	if held := (*sessionstore.HeldError)(nil); errors.As(err, &held) {
		return nil, n.leaveTo(ctx, had, held)
	}
	if err != nil {
		if ctx.Err() == nil {
			n.core.Log.Warn("lead", zap.Error(err))
		}
		return had, n.cfg.beatOfLease() // the fuse knows how long for
	}
	left := n.cfg.LeaseTTL - time.Since(asked)
	if had != nil && had.lease == lease && had.fuse.Reset(left) {
		return had, n.cfg.beatOfLease()
	}
	n.endTerm(had)
	return n.beginTerm(ctx, lease, left, tasks), n.cfg.beatOfLease()
}

// stand has the node's session compete for the lease, with its precedence.
func (n *Node) stand(ctx context.Context) (workqueue.Lease, error) {
	session := n.core.Session()
	if n.cfg.Precedence != 0 && n.stands != session {
		if err := n.sessions.SetPrecedence(ctx, session, n.cfg.Precedence); err != nil {
			return workqueue.Lease{}, err
		}
		n.stands = session
	}
	return n.sessions.Lead(ctx, session, n.cfg.LeaseTTL)
}

// withdraw is for a node that stops: it lives on until what it has in progress has ended, and others are to lead.
func (n *Node) withdraw(ctx context.Context) {
	if n.cfg.Precedence == 0 {
		return
	}
	timed, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := n.sessions.SetPrecedence(timed, n.core.Session(), 0); err != nil {
		n.core.Log.Warn("let other nodes lead; they do when this one's session has ended", zap.Error(err))
	}
}

// leaveTo lets another node lead, and returns when to look again. For one that has precedence, this one resigns.
func (n *Node) leaveTo(ctx context.Context, had *term, held *sessionstore.HeldError) time.Duration {
	if !held.Outranked {
		n.endTerm(had)
		return min(n.cfg.beatOfLease(), held.Left+leaseSlack)
	}
	n.stepDown(ctx, had)
	return n.cfg.beatOfLease()
}

// leaseSlack is how long after the end of another's lease it is tried for.
const leaseSlack = 5 * time.Millisecond

// beginTerm has every leader task done until the term is over.
func (n *Node) beginTerm(ctx context.Context, lease workqueue.Lease, left time.Duration, tasks *sync.WaitGroup) *term {
	ctx, end := context.WithCancel(ctx)
	now := &term{lease: lease, end: end, over: ctx.Done(), fuse: time.AfterFunc(left, end)}
	n.core.Log.Info("this node leads", zap.Int64("epoch", lease.Epoch))
	n.lease.Store(&lease)
	for _, d := range n.tasks {
		tasks.Go(func() { n.serve(ctx, d, lease) })
	}
	return now
}

func (n *Node) endTerm(had *term) {
	if had == nil {
		return
	}
	had.fuse.Stop()
	had.end()
	n.lease.Store(nil)
	n.core.Log.Info("this node does not lead any more", zap.Int64("epoch", had.lease.Epoch))
}

// stepDown ends a term and gives the lease up. Other nodes are told, so that one of them leads at once.
func (n *Node) stepDown(ctx context.Context, had *term) {
	if had == nil {
		return
	}
	n.endTerm(had)
	timed, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := n.sessions.Resign(timed, had.lease); err != nil {
		n.core.Log.Warn("resign; the lease runs out by itself", zap.Error(err))
		return
	}
	n.core.Notify(wakeElection)
}

// pulse is what a node says of itself with each heartbeat.
type pulse struct {
	Stats
	NATS    bool                    `json:"nats"`              // it is connected; explanations read it
	Stalled *streams.StalledStreams `json:"stalled,omitempty"` // it is, and the streams do not answer; also
	Refused string                  `json:"refused,omitempty"` // what NATS refuses its user; also
	Locals  []string                `json:"locals"`            // its functions for steps of kind local; also
	// LeaderTasks are there while it leads; the view of the nodes reads them.
	LeaderTasks []inspect.TaskPulse `json:"leader_tasks,omitempty"`
}

func (n *Node) pulse() pulse {
	return pulse{n.Stats(), n.core.NC.IsConnected(), n.streams.Stalled(), stream.UserRefused(n.core.NC), n.Locals(),
		n.Leading().pulses()}
}

// beat keeps the session alive. A node that finds its session gone (it was asleep, or cut off) opens a new one: the
// claims of the old one belong to others by then, and every write about them is fenced.
func (n *Node) beat(ctx context.Context) {
	tick := time.NewTicker(n.cfg.Heartbeat)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		timed, cancel := context.WithTimeout(ctx, n.cfg.Heartbeat*2)
		err := n.sessions.Heartbeat(timed, n.core.Session(), n.cfg.SessionTTL, n.pulse())
		if errors.Is(err, workqueue.ErrSessionLost) {
			n.core.Stats.SessionsLost.Add(1)
			n.core.Log.Warn("the session expired; starting a new one", zap.Stringer("session", n.core.Session()))
			n.fetching.Abandon(n.core.Session())
			n.flushing.Abandon(n.core.Session())
			err = n.newSession(timed)
			n.core.Wake()
		}
		cancel()
		if err != nil && ctx.Err() == nil {
			n.core.Log.Warn("heartbeat", zap.Error(err))
		}
	}
}

// Locals returns the names of the node's functions for steps of kind local, in order.
func (n *Node) Locals() []string {
	names := slices.AppendSeq([]string{}, maps.Keys(n.cfg.Locals)) // never nil: heartbeats carry it as a list
	slices.Sort(names)
	return names
}
