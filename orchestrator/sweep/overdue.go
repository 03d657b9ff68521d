package sweep

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/settle"
)

const (
	overdueBatch = 500
	// recordTimeout is how long a lost reply may wait for a recorder. Then its slice is reissued all the same.
	recordTimeout = 10 * time.Minute
)

// sweepOverdue handles slices past their deadline, which counts from the delivery to a service. An undelivered
// request gets a new deadline, or is rerouted if requests go elsewhere now. An acknowledged one has lost its reply,
// unless that still waits to be recorded. One that a service keeps is a failed attempt if its items are to blame
// ([settle.Store.Blamed]), and is removed from the stream; while JetStream is silent, it expires without penalty.
// Unknown cases are left to the next sweep.
func (w *Sweeper) sweepOverdue(ctx context.Context, lease workqueue.Lease) (int, error) {
	overdue, err := w.node.Settling.OverdueSlices(ctx, overdueBatch)
	if err != nil || len(overdue) == 0 {
		return 0, err
	}
	s := w.sortOverdue(ctx, overdue)
	w.node.Stats.Extended.Add(int64(len(s.waiting)))
	extended := w.node.Settling.Extend(ctx, lease, s.waiting)
	reissued, unsent := w.node.Settling.ReleaseUnsent(ctx, lease, s.gone)
	answered, lost := w.node.Settling.ReleaseAcknowledged(ctx, lease, s.lost)
	moved, rerouted := w.reroute(ctx, lease, s.rerouted)
	late, expired := w.expire(ctx, lease, &s)
	return reissued + answered + moved + late, errors.Join(extended, unsent, lost, rerouted, expired)
}

// reroute reissues requests that no service can receive any more: they left the stream, and behind the position
// of their endpoint's consumer. Services have the rest, which get a new deadline.
func (w *Sweeper) reroute(ctx context.Context, lease workqueue.Lease, of map[string][]workqueue.Sent) (int, error) {
	var free, taken []workqueue.SliceID
	for endpoint, requests := range of {
		absent := core.RemoveRequests(ctx, w.node, requests)
		asking, cancel := context.WithTimeout(ctx, core.QueryTimeout)
		consumer, err := w.node.JS.Consumer(asking, wire.StreamWork, wire.ConsumerName(endpoint))
		cancel()
		if err != nil {
			w.node.Log.Debug("read the position of a consumer", zap.String("endpoint", endpoint), zap.Error(err))
			continue
		}
		for _, r := range absent {
			if uint64(r.StreamSeq) > consumer.CachedInfo().Delivered.Stream {
				free = append(free, r.ID)
			} else {
				taken = append(taken, r.ID)
			}
		}
	}
	n, err := w.node.Settling.ReissueRerouted(ctx, lease, free)
	return n, errors.Join(err, w.node.Settling.Extend(ctx, lease, taken))
}

func (w *Sweeper) expire(ctx context.Context, lease workqueue.Lease, s *sorted) (int, error) {
	blamed, err := w.node.Settling.Blamed(ctx, s.silent, s.doubted)
	if err != nil {
		return 0, err
	}
	at := s.spent
	var excused []workqueue.SliceID
	for _, id := range s.silent {
		if blamed[id] {
			at = append(at, id)
		} else {
			excused = append(excused, id)
		}
	}
	late, failed := w.node.Settling.Expire(ctx, lease, at)
	passed, again := w.node.Settling.ExpireWithoutPenalty(ctx, lease, excused)
	w.node.Stats.Expired.Add(int64(late + passed))
	if failed == nil && again == nil {
		core.RemoveRequests(ctx, w.node, s.requests)
	}
	return late + passed, errors.Join(failed, again)
}

// handedAgain is the pause after a check of many endpoints without progress, within the accuracy of HandedFor in
// [settle.Overdue].
const handedAgain = 3 * time.Second

// noteHandedOut saves how far the consumers of endpoints with undelivered requests have delivered, and makes requests
// overdue that wait where no more of their step are sent.
func (w *Sweeper) noteHandedOut(ctx context.Context, lease workqueue.Lease) error {
	if time.Since(w.unmoved) < handedAgain {
		return nil
	}
	waiting, err := w.node.Settling.Undelivered(ctx)
	if err != nil || len(waiting) == 0 {
		return err
	}
	names := make([]string, len(waiting))
	for i, u := range waiting {
		names[i] = u.Endpoint
	}
	epoch, _ := w.streams.Now()
	queues := w.cfg.Queues(ctx, names)
	var failed error
	var at []settle.Handed
	for _, u := range waiting {
		queue, known := queues[u.Endpoint]
		if !known {
			continue
		}
		if queue == nil {
			w.endpoints.Forget(u.Endpoint) // its consumer was deleted; the next publisher creates it again
			_, err := w.endpoints.Ensure(ctx, u.Endpoint)
			failed = errors.Join(failed, err)
			continue
		}
		if err := stream.MendConsumer(ctx, w.node.JS, queue); err != nil {
			w.node.Log.Warn("a consumer is not as it should be", zap.String("endpoint", u.Endpoint), zap.Error(err))
		}
		if u.Epoch == epoch && queue.Delivered.Stream >= uint64(u.First) {
			at = append(at, settle.Handed{Endpoint: u.Endpoint, UpTo: int64(queue.Delivered.Stream)})
		}
	}
	if len(at) == 0 && failed == nil && len(names) > w.cfg.FewQueues {
		w.unmoved = time.Now()
	}
	if err := errors.Join(failed, w.node.Settling.HandedOut(ctx, lease, at, epoch)); err != nil {
		return err
	}
	return w.node.Settling.ExpireRerouted(ctx, lease)
}

type sorted struct {
	gone     []workqueue.SliceID // never in the stream, or removed from it: reissued
	waiting  []workqueue.SliceID // in the stream, not delivered
	lost     []workqueue.SliceID // acknowledged by a service: its reply was lost
	spent    []workqueue.SliceID // the same, too often
	silent   []workqueue.SliceID // delivered to a service, no answer
	doubted  map[workqueue.SliceID]bool
	requests []workqueue.Sent            // of the silent ones
	rerouted map[string][]workqueue.Sent // by endpoint: not known to be delivered, where no more are sent
}

func (w *Sweeper) sortOverdue(ctx context.Context, overdue []settle.Overdue) sorted {
	s := sorted{doubted: map[workqueue.SliceID]bool{}, rerouted: map[string][]workqueue.Sent{}}
	asking, cancel := context.WithTimeout(ctx, w.cfg.LeaseTTL/2)
	defer cancel()
	looking := core.NewRequestLook(asking, w.node)
	well := w.streams.WellFor()
	for _, o := range overdue {
		if o.StreamSeq == 0 {
			s.gone = append(s.gone, o.ID)
			continue
		}
		if o.Rerouted && !o.Handed {
			s.rerouted[o.Endpoint] = append(s.rerouted[o.Endpoint], o.Sent())
			continue
		}
		switch found := looking.Request(asking, o); {
		case found == core.RequestUnknown && o.Handed && looking.Stream == nil:
			// It has timed out regardless of its outcome; its items are not to blame while JetStream is silent.
			s.silent = append(s.silent, o.ID)
			s.doubted[o.ID] = true
		case found == core.RequestUnknown:
		case !o.Handed && found == core.RequestThere:
			s.waiting = append(s.waiting, o.ID)
		case !o.Handed:
			s.gone = append(s.gone, o.ID)
		case found == core.RequestThere:
			s.silent = append(s.silent, o.ID)
			s.doubted[o.ID] = well <= o.HandedFor
			s.requests = append(s.requests, o.Sent())
		case o.Spent:
			s.spent = append(s.spent, o.ID)
		default:
			s.lost = append(s.lost, o.ID)
		}
	}
	w.leaveUnrecorded(ctx, &s)
	return s
}

// leaveUnrecorded removes acknowledged requests whose replies may wait for a recorder, as after an outage of
// PostgreSQL. A reply is stored before its request is acknowledged, so the recorders only have to pass what was the end
// of the reply stream when the request was found to be gone. Its time is its own: look-ups may use up theirs each time.
func (w *Sweeper) leaveUnrecorded(ctx context.Context, s *sorted) {
	before := w.unrecorded
	w.unrecorded = map[workqueue.SliceID]*lostMark{}
	if len(s.lost)+len(s.spent) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, w.cfg.LeaseTTL/4) // the rest is for what needs no JetStream
	defer cancel()
	recorder, err := w.node.JS.Consumer(ctx, wire.StreamReply, wire.RecorderConsumer)
	var replies jetstream.Stream
	if err == nil {
		replies, err = w.node.JS.Stream(ctx, wire.StreamReply)
	}
	if err != nil {
		w.node.Log.Debug("check what is recorded", zap.Error(err))
		w.unrecorded, s.lost, s.spent = before, nil, nil
		return
	}
	waits := func(id workqueue.SliceID) bool {
		mark := before[id]
		if mark == nil {
			mark = &lostMark{since: time.Now(), replies: replies.CachedInfo().State.LastSeq}
		}
		w.unrecorded[id] = mark
		return time.Since(mark.since) < recordTimeout && !recordedUpTo(recorder.CachedInfo(), mark.replies)
	}
	s.lost, s.spent = slices.DeleteFunc(s.lost, waits), slices.DeleteFunc(s.spent, waits)
}
