package sweep

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/orchestrator/internal/kernel"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/settle"
)

const (
	// lostGrace is how long ago a slice was sent at the least until its request is looked for.
	lostGrace = 5 * time.Second
	// lostSettle is how long a request has to be gone until its slice counts as lost. What is shown of a slice needs no
	// such time; what a purge takes from under the hands of a recorder, or of a service, may come yet.
	lostSettle = 3 * time.Second
	// lostEvery is the time between two looks, lostAgain the least between two looks for the same request.
	lostEvery, lostAgain = 2 * time.Second, 5 * time.Second
	// lostBatch bounds the slices that one look is about, lostLookups the requests that it looks for one by one.
	lostBatch, lostLookups = 2000, 50
)

// lostSweep finds slices of which neither the request nor a reply is there any more: somebody has purged a stream, or a
// disk has lost what was acknowledged, in a stream that looks whole. They are issued again and need not wait for their
// deadlines.
//
// Nothing else is taken for lost, and that rests on the order of things, not on times:
//
//  1. A service acknowledges a request only after the last message of its reply was acknowledged by the reply stream
//     (or, when it is a flow, after the state of the suspended chunk was acknowledged by the flow stream).
//  2. A node acknowledges a reply only after the commit that records it, or that puts it aside.
//  3. So when a request is not in the work stream, its reply was stored at a place that is not behind the last
//     sequence of the reply stream that is read after that (or it is suspended, see suspensions). When later the
//     recorders' consumer has nothing left up to there, neither to deliver nor to be acknowledged, and the slice is
//     then, under its lock, still not answered in full and nothing of it was put aside, no reply to it is anywhere.
//
// A reply in the hands of a recorder on any node is one that is not acknowledged. A request that is delivered again is
// in the work stream. What is published to a stream that was made anew has another epoch, and is none of this. A reply
// that comes all the same, after a purge, finds its slice ended: it is stale and changes nothing.
//
// Between the two looks time passes: marks remember the first. It is for one goroutine.
type lostSweep struct {
	*Sweeper

	lease workqueue.Lease
	epoch int64
	marks map[workqueue.SliceID]*lostMark
}

// lostMark is what was seen of a slice.
type lostMark struct {
	looked  time.Time // when its request was looked for last
	since   time.Time // when its request was found gone; zero: it was there
	replies uint64    // the last sequence of the reply stream after that; 0: it is not known to be in no other stream
	flow    suspension
}

// FindingLost is the duty that looks for them.
func (w *Sweeper) FindingLost() func(context.Context, workqueue.Lease) (time.Duration, error) {
	s := &lostSweep{Sweeper: w}
	return func(ctx context.Context, lease workqueue.Lease) (time.Duration, error) {
		if !w.node.NC.IsConnected() {
			return lostEvery, nil
		}
		if epoch, _ := w.streams.Now(); lease != s.lease || epoch != s.epoch {
			*s = lostSweep{Sweeper: w, lease: lease, epoch: epoch, marks: map[workqueue.SliceID]*lostMark{}}
		}
		lost, err := s.round(ctx)
		w.node.Stats.Released.Add(int64(lost))
		if lost > 0 {
			w.node.Log.Warn("requests were taken out of their stream, and no reply to them is there; issuing them again",
				zap.Int("slices", lost))
			w.node.WakeOthers()
		}
		return lostEvery, err
	}
}

func (s *lostSweep) round(ctx context.Context) (int, error) {
	unanswered, err := s.node.Settling.Unanswered(ctx, s.epoch, lostGrace, lostBatch)
	if err != nil {
		return 0, err
	}
	s.forget(unanswered)
	if len(unanswered) == 0 {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.LeaseTTL/2)
	defer cancel()
	if gone, err := s.markGone(ctx, unanswered); err != nil || !gone {
		return 0, err
	}
	lost, err := s.lost(ctx, unanswered)
	if err != nil || len(lost) == 0 {
		return 0, err
	}
	return s.node.Settling.ReleaseLost(ctx, s.lease, lost, s.epoch)
}

// forget drops what was noted of slices that are answered.
func (s *lostSweep) forget(unanswered []settle.Unanswered) {
	still := make(map[workqueue.SliceID]*lostMark, len(s.marks))
	for _, u := range unanswered {
		if mark := s.marks[u.ID]; mark != nil {
			still[u.ID] = mark
		}
	}
	s.marks = still
}

// markGone marks the slices whose requests are not in the work stream any more, and reports whether any is. One
// that lies before the stream's beginning is known to be gone; others are looked for, some in each round.
func (s *lostSweep) markGone(ctx context.Context, unanswered []settle.Unanswered) (gone bool, err error) {
	stream, err := s.node.JS.Stream(ctx, wire.StreamWork)
	if err != nil {
		return false, fmt.Errorf("look for requests: %w", err)
	}
	first := stream.CachedInfo().State.FirstSeq
	looked := 0
	shuffled := slices.Clone(unanswered)
	kernel.Shuffle(shuffled)
	for _, u := range shuffled {
		mark := s.marks[u.ID]
		if mark == nil {
			mark = &lostMark{}
			s.marks[u.ID] = mark
		}
		if !mark.since.IsZero() {
			gone = true
			continue
		}
		there := uint64(u.StreamSeq) >= first
		if there {
			if looked >= lostLookups || time.Since(mark.looked) < lostAgain {
				continue
			}
			looked++
			if there, err = requestIs(ctx, stream, u); err != nil {
				return false, err
			}
		}
		mark.looked = time.Now()
		if !there {
			mark.since, gone = mark.looked, true
		}
	}
	return gone, nil
}

// requestIs reports whether the request of a slice lies where it was put.
func requestIs(ctx context.Context, stream jetstream.Stream, u settle.Unanswered) (bool, error) {
	msg, err := stream.GetMsg(ctx, uint64(u.StreamSeq))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look for the request of slice %s: %w", u.ID, err)
	}
	return msg.Header.Get(wire.HeaderMsgID) == u.ID.String(), nil
}

// lost returns the marked slices of which nothing is left. What is read here is read after the requests were found
// gone; where the reply stream ends, after it was found that a chunk is not suspended.
func (s *lostSweep) lost(ctx context.Context, unanswered []settle.Unanswered) (lost []workqueue.SliceID, err error) {
	recorder, err := s.node.JS.Consumer(ctx, wire.StreamReply, wire.RecorderConsumer)
	if err != nil {
		return nil, fmt.Errorf("look at what is recorded: %w", err)
	}
	flows := &suspensions{js: s.node.JS, of: map[string]stream.Suspended{}, progress: map[string]*progress{}}
	var ended []*lostMark // those that wait for nothing but their reply, since now
	for _, u := range unanswered {
		mark := s.marks[u.ID]
		switch {
		case mark == nil || mark.since.IsZero():
			continue
		case mark.replies > 0:
			if time.Since(mark.since) >= lostSettle && recordedUpTo(recorder.CachedInfo(), mark.replies) {
				lost = append(lost, u.ID)
			}
			continue
		}
		state, err := flows.stateOf(ctx, u.Endpoint, uuid.UUID(u.ID))
		if err != nil {
			return lost, err
		}
		if state == "" {
			ended = append(ended, mark)
			continue
		}
		stuck, err := flows.stuck(ctx, u.Endpoint, state, &mark.flow)
		if err != nil {
			return lost, err
		}
		if stuck { // what lies there may be left over from a stage that ran twice, and the chunk may have ended
			ended = append(ended, mark)
		}
	}
	if len(ended) == 0 {
		return lost, nil
	}
	replies, err := s.node.JS.Stream(ctx, wire.StreamReply)
	if err != nil {
		return lost, fmt.Errorf("look for replies: %w", err)
	}
	for _, mark := range ended {
		mark.replies = max(1, replies.CachedInfo().State.LastSeq)
	}
	return lost, nil
}

// recordedUpTo reports whether all replies up to a sequence were acknowledged.
func recordedUpTo(recorder *jetstream.ConsumerInfo, sequence uint64) bool {
	return recorder.AckFloor.Stream >= sequence ||
		recorder.NumAckPending == 0 && (recorder.Delivered.Stream >= sequence || recorder.NumPending == 0)
}
