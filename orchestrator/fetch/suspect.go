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
	// nodesLost is how many nodes may be lost with a chunk before it is taken for what kills them.
	nodesLost = 3
	// alonePause is how long a suspect rests while another has the node for itself.
	alonePause = 200 * time.Millisecond
	// aloneTimeout is how long a suspect waits for the other work of its node to end, and that for the suspect.
	aloneTimeout = 10 * time.Second
)

// errAlone gives a suspect back while another has its node for itself: were the node lost, it would be lost with it.
var errAlone = errors.New("the node is trying another chunk alone that may kill it")

// lost is how often a slice's items were reissued because their node was gone, about: with what else is no one's
// fault.
func (j *fetchJob) lost() int { return j.Attempt - 1 - j.Failures }

// suspect reports whether a slice is to be tried alone: it may kill its node.
func (j *fetchJob) suspect() bool {
	return j.Suspect || j.Cause == workqueue.CauseSession && j.lost() >= nodesLost
}

// killsNodes reports whether a suspect has killed its node: it was tried alone and lost with it, or, as long as it can
// be cut in pieces, it was lost often enough.
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

// turn waits until a slice may begin, and notes that a suspect does. leave ends it.
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

// giveUpOn fails a slice that may kill its nodes: it is cut in pieces, until what kills them stands alone.
func (f *Worker) giveUpOn(ctx context.Context, job *fetchJob) {
	c := newCollector(f, job)
	failure := workqueue.SlotError{Code: workqueue.CodeDeliveries, Retry: true, Message: fmt.Sprintf("its nodes were "+
		"lost while they worked on it, %d in all; it may kill them", job.lost())}
	f.node.Log.Warn("a chunk may kill its nodes", zap.Stringer("run", job.Run), zap.Stringer("slice", job.ID),
		zap.String("step", job.Work.Name), zap.Int("items", job.Mask.Count()))
	c.finish(ctx, &failure, 0)
}

// isolation lets a suspect have its node for itself, so that no one who did nothing is lost with it. It is safe for
// concurrent use.
type isolation struct {
	mu      sync.Mutex
	others  int           // at work
	alone   bool          // a suspect is, or waits to be
	changed chan struct{} // closed with each change
}

func newIsolation() *isolation { return &isolation{changed: make(chan struct{})} }

func (s *isolation) change(how func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	how()
	close(s.changed)
	s.changed = make(chan struct{})
}

// begin waits until a job may begin, within aloneTimeout. A suspect is refused while there is another one. leave ends
// it.
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
	entered := s.await(ctx, func() bool { // under the lock: no suspect comes in between
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

// await waits until a condition, which is looked at with mu held, is met. It returns false when that takes too long.
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
