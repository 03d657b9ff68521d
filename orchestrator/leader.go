package orchestrator

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/orchestrator/streams"
	"github.com/tranchehq/tranche/orchestrator/sweep"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	sessionstore "github.com/tranchehq/tranche/workqueue/session"
)

// Other messages on core.WakeSubject. They only save time: nodes also poll.
const (
	wakeElection = "lead"  // a leader resigned: candidates try for the lease now
	wakeTask     = "task " // and the leader task's name: the leader runs it now
)

// The leader tasks of every node; Config.LeaderTasks adds to them.
const (
	taskSweep      = "sweep"      // reissues what cannot end otherwise
	taskStalled    = "stalled"    // ends transactions of processes that stalled in them
	taskClear      = "clear"      // removes loads whose node is gone; gigabytes take minutes
	taskReconcile  = "reconcile"  // maintains endpoints and their consumers
	taskPace       = "pace"       // decides the request rate of endpoints
	taskDeadlines  = "deadlines"  // paces runs by their done_by, and keeps what requests cost
	taskWritable   = "writable"   // checks that the streams accept messages
	taskLost       = "lost"       // reissues what was lost in a stream that seems complete
	taskCollectors = "collectors" // frees keys of lost nodes, and deletes what collectors no longer need
	taskAudit      = "audit"      // chains the rows of the audit log
	TaskStreams    = "streams"    // applies the streams' settings to JetStream
	TaskRetention  = "retention"  // deletes what is past its limits
)

func (n *Node) ownLeaderTasks() []LeaderTask {
	sweeper := sweep.New(n.core, n.streams, n.consumers, n.watch, n.letters, n.runs,
		sweep.Config{LeaseTTL: n.cfg.LeaseTTL, Queues: n.queuesOf, FewQueues: fewQueues})
	return []LeaderTask{{taskSweep, sweeper.Sweeping}, {taskStalled, sweeper.EndingStalled}, {taskClear, sweeper.Clearing},
		{taskReconcile, n.consumers.Reconciling(n.letters.Sweeping())}, {TaskStreams, n.streams.Tending()},
		{taskWritable, n.streams.Trying()}, {taskLost, sweeper.FindingLost()}, {taskPace, n.pacing()},
		{taskDeadlines, n.deadlines()}, {TaskRetention, retaining(n.core, n.cfg.Archive)}, {taskCollectors, n.flushing.Tend},
		{taskAudit, sealing(n.core)}}
}

type sessionStore interface {
	StartSession(ctx context.Context, node sessionstore.NodeInfo, ttl time.Duration) (workqueue.SessionID, error)
	Heartbeat(ctx context.Context, session workqueue.SessionID, ttl time.Duration, stats any) (rests bool, err error)
	Lead(ctx context.Context, session workqueue.SessionID, ttl time.Duration) (workqueue.Lease, error)
	SetPrecedence(ctx context.Context, session workqueue.SessionID, precedence int) error
	Resign(ctx context.Context, lease workqueue.Lease) error
}

func (c *Config) beatOfLease() time.Duration { return c.LeaseTTL / 4 }

// term is a period in which this node leads.
type term struct {
	lease workqueue.Lease
	end   context.CancelFunc
	over  <-chan struct{}
	// fuse ends the term when the lease was not renewed by then, on this node's own clock: later commits would fail.
	fuse *time.Timer
}

// lead tries for the lease and, while it holds it, runs leader tasks in other goroutines, so that none delays a
// renewal. On a clean stop it resigns first.
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

// leadOnce takes or renews the lease. It returns the continuing term, nil while another node leads, and the time to
// the next try.
func (n *Node) leadOnce(ctx context.Context, had *term, tasks *sync.WaitGroup) (*term, time.Duration) {
	if had != nil && had.lease.Session != n.core.Session() {
		n.stepDown(ctx, had) // the session had expired: its successor need not wait for the end of the lease
		had = nil
	}
	timed, cancel := context.WithTimeout(ctx, n.cfg.LeaseTTL)
	defer cancel()
	asked := time.Now()
	lease, err := n.compete(timed)
	if held := (*sessionstore.HeldError)(nil); errors.As(err, &held) {
		return nil, n.leaveTo(ctx, had, held)
	}
	if err != nil {
		if ctx.Err() == nil {
			n.core.Log.Warn("lead", zap.Error(err))
		}
		return had, n.cfg.beatOfLease() // the fuse ends the term if this continues
	}
	left := n.cfg.LeaseTTL - time.Since(asked)
	if had != nil && had.lease == lease && had.fuse.Reset(left) {
		return had, n.cfg.beatOfLease()
	}
	n.endTerm(had)
	return n.beginTerm(ctx, lease, left, tasks), n.cfg.beatOfLease()
}

// compete competes for the lease with the node's session and precedence.
func (n *Node) compete(ctx context.Context) (workqueue.Lease, error) {
	session := n.core.Session()
	if n.cfg.Precedence != 0 && n.announced != session {
		if err := n.sessions.SetPrecedence(ctx, session, n.cfg.Precedence); err != nil {
			return workqueue.Lease{}, err
		}
		n.announced = session
	}
	return n.sessions.Lead(ctx, session, n.cfg.LeaseTTL)
}

// withdraw clears the precedence of a stopping node, so that others lead while it finishes its work.
func (n *Node) withdraw(ctx context.Context) {
	if n.cfg.Precedence == 0 {
		return
	}
	timed, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := n.sessions.SetPrecedence(timed, n.core.Session(), 0); err != nil {
		n.core.Log.Warn("release the lead; other nodes take it when this one's session ends", zap.Error(err))
	}
}

// leaveTo ends the term, and returns when to try again. It resigns if the other node has a higher precedence.
func (n *Node) leaveTo(ctx context.Context, had *term, held *sessionstore.HeldError) time.Duration {
	if !held.Outranked {
		n.endTerm(had)
		return min(n.cfg.beatOfLease(), held.Left+leaseSlack)
	}
	n.stepDown(ctx, had)
	return n.cfg.beatOfLease()
}

// leaseSlack is how long after another node's lease expires this one tries.
const leaseSlack = 5 * time.Millisecond

// beginTerm runs every leader task until the term ends.
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

// stepDown ends a term and releases the lease. It wakes the other nodes, so that one leads immediately.
func (n *Node) stepDown(ctx context.Context, had *term) {
	if had == nil {
		return
	}
	n.endTerm(had)
	timed, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := n.sessions.Resign(timed, had.lease); err != nil {
		n.core.Log.Warn("resign; the lease will expire", zap.Error(err))
		return
	}
	n.core.Notify(wakeElection)
}

// pulse is what a heartbeat reports, for explanations and the view of the nodes.
type pulse struct {
	Stats
	NATS        bool                    `json:"nats"`              // it is connected
	Stalled     *streams.StalledStreams `json:"stalled,omitempty"` // it is connected, but the streams do not answer
	Refused     string                  `json:"refused,omitempty"` // what NATS denies its user
	Locals      []string                `json:"locals"`            // its functions for steps of kind local
	LeaderTasks []inspect.TaskPulse     `json:"leader_tasks,omitempty"`
}

func (n *Node) pulse() pulse {
	return pulse{n.Stats(), n.core.NC.IsConnected(), n.streams.Stalled(), stream.UserRefused(n.core.NC), n.Locals(),
		n.Leading().pulses()}
}

// beat keeps the session alive. It replaces an expired one: other nodes own its claims by then, and a fence rejects
// every write about them.
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
		rests, err := n.sessions.Heartbeat(timed, n.core.Session(), n.cfg.SessionTTL, n.pulse())
		n.core.Rests.Store(rests)
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

// Locals returns the sorted names of the node's functions for steps of kind local.
func (n *Node) Locals() []string {
	names := slices.AppendSeq([]string{}, maps.Keys(n.cfg.Locals)) // never nil: heartbeats carry it as a list
	slices.Sort(names)
	return names
}

// Leading is what a node reports while it leads.
type Leading struct {
	Epoch       int64 // of the lease
	LeaderTasks []inspect.TaskPulse
}

// Leading returns nil while the node does not lead.
func (n *Node) Leading() *Leading {
	lease := n.lease.Load()
	if lease == nil {
		return nil
	}
	l := &Leading{Epoch: lease.Epoch, LeaderTasks: make([]inspect.TaskPulse, 0, len(n.tasks))}
	for _, d := range n.tasks {
		l.LeaderTasks = append(l.LeaderTasks, d.pulse())
	}
	return l
}

func (l *Leading) pulses() []inspect.TaskPulse {
	if l == nil {
		return nil
	}
	return l.LeaderTasks
}

// Stats is a reading of a node's counters since its start: one field for each of [core.Counters], with the same name.
type Stats struct {
	Claims       int64 `json:"claims"`       // claim transactions that found work
	EmptyClaims  int64 `json:"empty_claims"` // that found none
	Slices       int64 `json:"slices"`       // slices claimed
	Requests     int64 `json:"requests"`     // requests in the stream
	Republished  int64 `json:"republished"`  // publishes retried
	Postponed    int64 `json:"postponed"`    // slices that could not be published, released for a while
	Unreachable  int64 `json:"unreachable"`  // times nothing was claimed, since the NATS server sent no heartbeat
	Splits       int64 `json:"splits"`       // slices cut because they were too large for a message, or for the node
	Commits      int64 `json:"commits"`      // recording transactions
	Replies      int64 `json:"replies"`      // messages recorded
	Slots        int64 `json:"slots"`        // slots recorded
	Stale        int64 `json:"stale"`        // messages of a superseded or closed slice: they had no effect
	Duplicates   int64 `json:"duplicates"`   // slots of items with an earlier answer
	Quarantined  int64 `json:"quarantined"`
	Expired      int64 `json:"expired"`  // slices past their deadline
	Extended     int64 `json:"extended"` // deadlines moved: the request was not yet delivered to a service
	Released     int64 `json:"released"` // slices of dead sessions and lost streams reissued
	SessionsLost int64 `json:"sessions_lost"`
	Buried       int64 `json:"buried"`    // dead letters stored
	Exhausted    int64 `json:"exhausted"` // removed messages that JetStream no longer delivers
	Requeued     int64 `json:"requeued"`  // dead letters sent again

	Fetches       int64 `json:"fetches"`        // chunks processed by the node itself
	FetchesFailed int64 `json:"fetches_failed"` // that failed entirely, or omitted items
	Fetching      int64 `json:"fetching"`       // in progress now
	Hung          int64 `json:"hung"`           // abandoned calls of fetchers that have not returned
	OddSlots      int64 `json:"odd_slots"`      // slots from fetchers for unrequested items or duplicates
	RecordedAgain int64 `json:"recorded_again"` // retried commits of fetched results

	Flushes      int64 `json:"flushes"`       // requests for collectors
	FlushedOps   int64 `json:"flushed_ops"`   // operations that succeeded
	FailedOps    int64 `json:"failed_ops"`    // tries of operations that failed
	StaleFlushes int64 `json:"stale_flushes"` // flushes that returned too late: they had no effect
}

// Stats returns the node's counters.
func (n *Node) Stats() Stats {
	s := Stats{Fetching: int64(n.fetching.AtWork())}
	counters, stats := reflect.ValueOf(&n.core.Stats).Elem(), reflect.ValueOf(&s).Elem()
	for field, counter := range counters.Fields() {
		stats.FieldByName(field.Name).SetInt(counter.Addr().Interface().(*atomic.Int64).Load())
	}
	return s
}
