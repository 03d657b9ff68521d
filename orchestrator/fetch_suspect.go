package orchestrator

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue"
)

const (
	// nodesLost is how many nodes may be lost with a chunk before it is taken for what kills them.
	nodesLost = 3
	// aloneLost is the same for a single item, which cannot be cut: it is tried alone before.
	aloneLost = 6
	// alonePause is how long a suspect rests while another has the node for itself.
	alonePause = 200 * time.Millisecond
	// alonePatience is how long a suspect waits for the other work of its node to end, and that for the suspect.
	alonePatience = 10 * time.Second
)

// errAlone gives a suspect back while another has its node for itself: were the node lost, it would be lost with it.
var errAlone = errors.New("the node is trying another chunk alone that may kill it")

// lost is how often a slice's items were issued again because their node was gone, about: with what else is nobody's
// fault.
func (j *fetchJob) lost() int { return j.Attempt - 1 - j.Failures }

// killsNodes reports whether a slice has been lost with its node so often that it may be the reason.
func (j *fetchJob) killsNodes() bool {
	switch {
	case j.Cause != workqueue.CauseSession:
		return false
	case j.Suspect:
		return true // it was tried alone
	case j.Mask.Count() == 1:
		return j.lost() >= aloneLost
	default:
		return j.lost() >= nodesLost
	}
}

// suspect reports whether a slice is to be tried alone.
func (j *fetchJob) suspect() bool {
	return j.Suspect || j.Cause == workqueue.CauseSession && j.lost() >= nodesLost
}

// giveUpOn fails a slice that may kill its nodes: it is cut in pieces, until what kills them stands alone.
func (f *fetching) giveUpOn(ctx context.Context, job *fetchJob) {
	c := newCollector(f, job)
	failure := workqueue.SlotError{Code: workqueue.CodeDeliveries, Retry: true, Message: fmt.Sprintf("its nodes were "+
		"lost while they worked on it, %d in all; it may kill them", job.lost())}
	f.node.log.Warn("a chunk may kill its nodes", zap.Stringer("run", job.Run), zap.Stringer("slice", job.ID),
		zap.String("step", job.work.Name), zap.Int("items", job.Mask.Count()))
	c.finish(ctx, &failure, 0)
}

// solitude lets a suspect have its node for itself, so that nobody who did nothing is lost with it. It is safe for
// concurrent use.
type solitude struct {
	mu      sync.Mutex
	others  int           // at work
	alone   bool          // a suspect is, or waits to be
	changed chan struct{} // closed with each change
}

func newSolitude() *solitude { return &solitude{changed: make(chan struct{})} }

func (s *solitude) change(how func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	how()
	close(s.changed)
	s.changed = make(chan struct{})
}

// begin waits until a job may begin, within alonePatience. A suspect is refused while there is another one. leave ends
// it.
func (s *solitude) begin(ctx context.Context, suspect bool) (leave func(), err error) {
	if suspect {
		refused := false
		s.change(func() { refused, s.alone = s.alone, true })
		if refused {
			return nil, errAlone
		}
		s.await(ctx, func() bool { return s.others == 0 })
		return func() { s.change(func() { s.alone = false }) }, nil
	}
	s.await(ctx, func() bool { return !s.alone })
	s.change(func() { s.others++ })
	return func() { s.change(func() { s.others-- }) }, nil
}

func (s *solitude) await(ctx context.Context, met func() bool) {
	timer := time.NewTimer(alonePatience)
	defer timer.Stop()
	for {
		s.mu.Lock()
		ready, changed := met(), s.changed
		s.mu.Unlock()
		if ready {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}
