package orchestrator

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue"
	sessionstore "github.com/tranchehq/tranche/workqueue/session"
)

// What goes with wakeSubject beside its first meaning. Nothing depends on either: nodes look by themselves.
const (
	wakeElection = "lead"  // a leader has resigned: who wants to lead tries at once
	wakeDuty     = "duty " // and the duty's name: the leader runs it now
)

// The duties that every node has. Those of Config.Duties come beside them.
const (
	dutySweep     = "sweep"     // issues again what cannot come to an end by itself
	dutyStalled   = "stalled"   // ends transactions of processes that have stopped in the middle of them
	dutyReconcile = "reconcile" // looks after endpoints and their consumers
	dutyPace      = "pace"      // decides how fast endpoints are asked
	dutyLost      = "lost"      // issues again what was lost in a stream that looks whole
)

func (n *Node) ownDuties() []Duty {
	sweep := newSweeper(n.kernel, n.streams, n.consumers, n.watch, n.letters, struct {
		*starter
		*controls
	}{n.starts, n.controls}, sweepConfig{LeaseTTL: n.cfg.LeaseTTL, Queues: n.queuesOf, FewQueues: fewQueues})
	return []Duty{{dutySweep, sweep.sweeping}, {dutyStalled, sweep.endingStalled}, {dutyClear, sweep.clearing},
		{dutyReconcile, n.consumers.reconciling(n.letters.sweep())}, {DutyStreams, n.streams.tending()},
		{dutyWritable, n.streams.trying()}, {dutyLost, sweep.findingLost()}, {dutyPace, n.pacing()},
		{DutyRetention, retaining(n.kernel)}, {dutyCollectors, n.flushing.tend}}
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

// lead tries for the lease and, while it has it, has the duties done. It does nothing else itself, so that nothing
// keeps it from prolonging the lease. On a clean stop it resigns first of all.
func (n *Node) lead(ctx context.Context) {
	var now *term
	var duties sync.WaitGroup
	defer duties.Wait()
	for {
		var pause time.Duration
		now, pause = n.leadOnce(ctx, now, &duties)
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
func (n *Node) leadOnce(ctx context.Context, had *term, duties *sync.WaitGroup) (*term, time.Duration) {
	if had != nil && had.lease.Session != n.Session() {
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
			n.log.Warn("lead", zap.Error(err))
		}
		return had, n.cfg.beatOfLease() // the fuse knows how long for
	}
	left := n.cfg.LeaseTTL - time.Since(asked)
	if had != nil && had.lease == lease && had.fuse.Reset(left) {
		return had, n.cfg.beatOfLease()
	}
	n.endTerm(had)
	return n.beginTerm(ctx, lease, left, duties), n.cfg.beatOfLease()
}

// stand has the node's session compete for the lease, with its precedence.
func (n *Node) stand(ctx context.Context) (workqueue.Lease, error) {
	session := n.Session()
	if n.cfg.Precedence != 0 && n.stands != session {
		if err := sessionstore.New(n.store).SetPrecedence(ctx, session, n.cfg.Precedence); err != nil {
			return workqueue.Lease{}, err
		}
		n.stands = session
	}
	return sessionstore.New(n.store).Lead(ctx, session, n.cfg.LeaseTTL)
}

// withdraw is for a node that stops: it lives on until what it has under way has ended, and others are to lead.
func (n *Node) withdraw(ctx context.Context) {
	if n.cfg.Precedence == 0 {
		return
	}
	timed, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := sessionstore.New(n.store).SetPrecedence(timed, n.Session(), 0); err != nil {
		n.log.Warn("let other nodes lead; they do when this one's session has ended", zap.Error(err))
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

// beginTerm has every duty done until the term is over.
func (n *Node) beginTerm(ctx context.Context, lease workqueue.Lease, left time.Duration, duties *sync.WaitGroup) *term {
	ctx, end := context.WithCancel(ctx)
	now := &term{lease: lease, end: end, over: ctx.Done(), fuse: time.AfterFunc(left, end)}
	n.log.Info("this node leads", zap.Int64("epoch", lease.Epoch))
	n.lease.Store(&lease)
	for _, d := range n.duties {
		duties.Go(func() { n.serve(ctx, d, lease) })
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
	n.log.Info("this node does not lead any more", zap.Int64("epoch", had.lease.Epoch))
}

// stepDown ends a term and gives the lease up. Other nodes are told, so that one of them leads at once.
func (n *Node) stepDown(ctx context.Context, had *term) {
	if had == nil {
		return
	}
	n.endTerm(had)
	timed, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := sessionstore.New(n.store).Resign(timed, had.lease); err != nil {
		n.log.Warn("resign; the lease runs out by itself", zap.Error(err))
		return
	}
	if err := n.nc.Publish(wakeSubject, []byte(wakeElection)); err != nil {
		n.log.Debug("tell others that nobody leads", zap.Error(err))
	}
}
