package fetch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
)

const (
	// nodesLost is the number of nodes lost with a chunk at which it becomes a suspect.
	nodesLost = 3
	// alonePause is how long a suspect is postponed while another runs alone.
	alonePause = 200 * time.Millisecond
	// aloneTimeout is how long a suspect waits for the node's other work to end, and that for the suspect.
	aloneTimeout = 10 * time.Second
)

// errAlone postpones a suspect while another runs alone: both would be lost with the node.
var errAlone = errors.New("the node is trying another chunk alone that may kill it")

// lost returns about how often a slice was reissued with its node lost; it includes other reissues without penalty.
func (j *fetchJob) lost() int { return j.Attempt - 1 - j.Failures }

// suspect reports whether a slice may kill its node, and must run alone.
func (j *fetchJob) suspect() bool {
	return j.Suspect || j.Cause == workqueue.CauseSession && j.lost() >= nodesLost
}

// killsNodes reports whether a suspect has killed its node: it ran alone and was lost with it, or it can still be
// split.
func (f *Worker) killsNodes(ctx context.Context, job *fetchJob) (bool, error) {
	switch {
	case job.Cause != workqueue.CauseSession || !job.suspect():
		return false, nil
	case !job.Suspect && job.Mask.Count() > 1:
		return true, nil
	}
	ctx, cancel := context.WithTimeout(ctx, core.ReadTimeout)
	defer cancel()
	return f.store.TriedAlone(ctx, job.ID)
}

// turn waits until a slice may begin, and saves that a suspect does. leave ends the turn.
func (f *Worker) turn(ctx context.Context, job *fetchJob) (leave func(), err error) {
	leave, err = f.isolation.begin(ctx, job.suspect())
	if err != nil || !job.suspect() {
		return leave, err
	}
	marking, cancel := context.WithTimeout(ctx, core.ReadTimeout)
	defer cancel()
	ours, err := f.store.BeginAlone(marking, job.Session, job.ID)
	if err == nil && !ours {
		err = core.ErrSessionGone
	}
	if err != nil {
		leave()
		return nil, err
	}
	return leave, nil
}

// giveUpOn fails a slice that may kill its nodes, so that it is split until its culprit is alone.
func (f *Worker) giveUpOn(ctx context.Context, job *fetchJob) {
	c := newCollector(f, job)
	failure := workqueue.SlotError{Code: workqueue.CodeDeliveries, Retry: true, Message: fmt.Sprintf("its nodes were "+
		"lost while they worked on it, %d in all; it may kill them", job.lost())}
	f.node.Log.Warn("a chunk may kill its nodes", zap.Stringer("run", job.Run), zap.Stringer("slice", job.ID),
		zap.String("step", job.Work.Name), zap.Int("items", job.Mask.Count()))
	c.finish(ctx, &failure, 0)
}

// isolation runs a suspect alone on its node, so that no other work is lost with it. It is safe for concurrent use.
type isolation struct {
	mu      sync.Mutex
	others  int           // other jobs in progress
	alone   bool          // a suspect runs, or waits to
	changed chan struct{} // closed at each change
}

func (s *isolation) change(how func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	how()
	close(s.changed)
	s.changed = make(chan struct{})
}

// begin waits until a job may begin, at most aloneTimeout. It refuses a second suspect. leave ends the job.
func (s *isolation) begin(ctx context.Context, suspect bool) (leave func(), err error) {
	if suspect {
		refused := false
		s.change(func() { refused, s.alone = s.alone, true })
		if refused {
			return nil, errAlone
		}
		s.await(ctx, func() bool { return s.others == 0 })
		return func() { s.change(func() { s.alone = false }) }, nil
	}
	entered := s.await(ctx, func() bool { // under the lock, so that no suspect begins in between
		if !s.alone {
			s.others++
		}
		return !s.alone
	})
	if !entered {
		s.change(func() { s.others++ })
	}
	return func() { s.change(func() { s.others-- }) }, nil
}

// await waits until met, called with mu held, returns true. It returns false after aloneTimeout.
func (s *isolation) await(ctx context.Context, met func() bool) bool {
	timer := time.NewTimer(aloneTimeout)
	defer timer.Stop()
	for {
		s.mu.Lock()
		ready, changed := met(), s.changed
		s.mu.Unlock()
		if ready {
			return true
		}
		select {
		case <-changed:
		case <-timer.C:
			return false
		case <-ctx.Done():
			return false
		}
	}
}
