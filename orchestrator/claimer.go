package orchestrator

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/fault"
	"github.com/tranchehq/tranche/workqueue"
)

// assignment is a claimed slice on its way into the stream.
type assignment struct {
	workqueue.Slice
	session  workqueue.SessionID
	endpoint string
	params   []byte // of the run, as JSON; nil without
	claimed  time.Time
}

// runPublishing is the way from PostgreSQL into the stream: one claimer, a few publishers, one confirmer. When ctx ends
// the claimer stops, and the others finish what it took.
func (n *Node) runPublishing(ctx, draining context.Context) {
	assigned := make(chan assignment)
	published := make(chan publication, maxPendingPublishes)
	var publishers sync.WaitGroup
	for range n.cfg.Publishers {
		publishers.Go(func() { n.publishAssigned(draining, assigned, published) })
	}
	var confirmer sync.WaitGroup
	confirmer.Go(func() { n.confirm(draining, published) })
	n.claim(ctx, assigned)
	close(assigned)
	publishers.Wait()
	close(published)
	confirmer.Wait()
}

// claim takes work until ctx ends. It looks when woken, and every Poll: a slice whose time to be tried again has come
// wakes nobody.
func (n *Node) claim(ctx context.Context, assigned chan<- assignment) {
	for ctx.Err() == nil {
		found, err := 0, error(nil)
		if n.nc.IsConnected() { // what cannot be published is not to be claimed
			found, err = n.claimOnce(ctx, assigned)
		}
		if err != nil && ctx.Err() == nil {
			n.log.Warn("claim", zap.Error(err))
		}
		if found > 0 && err == nil {
			continue
		}
		timer := time.NewTimer(jitter(n.cfg.Poll))
		select {
		case <-ctx.Done():
		case <-n.wakes:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// jitter spreads nodes that poll: between half of d and d.
func jitter(d time.Duration) time.Duration { return d/2 + time.Duration(rand.Int64N(int64(d)/2+1)) }

// claimOnce goes once round the steps that have work and returns how many slices it took. A step that cannot be claimed
// of does not keep the others waiting.
func (n *Node) claimOnce(ctx context.Context, assigned chan<- assignment) (int, error) {
	reading, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	steps, err := n.store.RunnableSteps(reading)
	if err != nil {
		return 0, err
	}
	total := 0
	var failed error
	for _, step := range steps {
		n.cfg.Faults.Hit(fault.ClaimBefore)
		taken, err := n.claimStep(ctx, step, assigned)
		total += taken
		switch {
		case errors.Is(err, workqueue.ErrSessionLost) || ctx.Err() != nil:
			return total, nil // the heartbeat opens a new session and wakes the claimer
		case errors.Is(err, workqueue.ErrBusy):
			n.log.Debug("claim", zap.Error(err)) // its turn comes with the next round
		case err != nil:
			failed = errors.Join(failed, err)
		}
	}
	return total, failed
}

func (n *Node) claimStep(ctx context.Context, step workqueue.Runnable, assigned chan<- assignment) (int, error) {
	session := n.Session()
	slices, err := n.store.Claim(ctx, workqueue.ClaimRequest{
		Session: session, Run: step.Run, Step: step.Step, MaxSlices: n.cfg.ClaimSlices, MaxBytes: n.requestBytes(),
	})
	if err != nil {
		return 0, err
	}
	if len(slices) == 0 {
		n.stats.emptyClaims.Add(1)
		return 0, nil
	}
	n.cfg.Faults.Hit(fault.ClaimCommitted)
	n.stats.claims.Add(1)
	n.stats.slices.Add(int64(len(slices)))
	for _, s := range slices {
		select {
		case assigned <- assignment{s, session, step.Endpoint, step.Params, time.Now()}:
		case <-ctx.Done(): // the session's end hands them back
			return len(slices), nil
		}
	}
	return len(slices), nil
}

func (n *Node) requestBytes() int64 {
	return min(int64(n.cfg.RequestBytes), n.nc.MaxPayload()*3/4)
}
