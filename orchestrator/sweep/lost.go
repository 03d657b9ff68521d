package sweep

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/stream"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/settle"
)

const (
	// lostGrace is how long ago a slice was sent at the least until its request is looked for.
	lostGrace = 5 * time.Second
	// lostSettle is how long a request must be gone until its slice counts as lost. What is shown of a slice needs no
	// such time; what a purge takes from under the hands of a recorder, or of a service, may come yet.
	lostSettle = 3 * time.Second
	// lostEvery is the time between two looks, lostAgain the least between two looks for the same request.
	lostEvery, lostAgain = 2 * time.Second, 5 * time.Second
	// lostBatch bounds the slices that one look finds to lie before the stream's beginning, lostLookups the requests that
	// it looks for one by one, lostMarks the slices that are watched because their requests are gone, lostReleased those
	// that it issues again.
	lostBatch, lostLookups, lostMarks, lostReleased = 2000, 50, 4 * 2000, 1000
)

// lostSweep finds slices of which neither the request nor a reply is there any more: someone has purged a stream, or a
// disk has lost what was acknowledged, in a stream that looks whole. They are reissued and need not wait for their
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
// in the work stream. What is published to a stream that was made again has another epoch, and is none of this. A reply
// that comes anyway, after a purge, finds its slice ended: it is stale and changes nothing.
//
// Between the two looks time passes: marks remember the first. Requests are looked for in laps, by their places in the
// stream, some in each look, so that those that wait long keep no other from its turn. It is for one goroutine.
type lostSweep struct {
	*Sweeper

	store   lostStore
	lease   workqueue.Lease
	epoch   int64
	marks   map[workqueue.SliceID]*lostMark
	lap     time.Time // when the present one began
	waiting bool      // it found something
	at, end int64     // behind which place it goes on, 0: it is over; and before which it ends
	before  int64     // the same of what lies before the stream's beginning
}

// lostStore knows the slices without an answer, and issues lost ones again. See [settle.Store].
type lostStore interface {
	Unanswered(ctx context.Context, epoch int64, longer time.Duration, behind, before int64,
		limit int) ([]settle.Unanswered, error)
	StillUnanswered(ctx context.Context, epoch int64, of []workqueue.SliceID) ([]settle.Unanswered, error)
	ReleaseLost(ctx context.Context, lease workqueue.Lease, lost []workqueue.SliceID, epoch int64) (int, error)
}

// lostMark is what was seen of a slice whose request is gone.
type lostMark struct {
	since   time.Time // when its request was found gone
	replies uint64    // the last sequence of the reply stream after that; 0: it is not known to be in no other stream
	flow    suspension
}

func newLostSweep(w *Sweeper, store lostStore, lease workqueue.Lease, epoch int64) *lostSweep {
	return &lostSweep{Sweeper: w, store: store, lease: lease, epoch: epoch, marks: map[workqueue.SliceID]*lostMark{}}
}

// FindingLost is the leader task that looks for them.
func (w *Sweeper) FindingLost() func(context.Context, workqueue.Lease) (time.Duration, error) {
	s := newLostSweep(w, w.node.Settling, workqueue.Lease{}, 0)
	return func(ctx context.Context, lease workqueue.Lease) (time.Duration, error) {
		if !w.node.NC.IsConnected() {
			return lostEvery, nil
		}
		if epoch, _ := w.streams.Now(); lease != s.lease || epoch != s.epoch {
			s = newLostSweep(w, w.node.Settling, lease, epoch)
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
	page, err := s.page(ctx)
	if err != nil || !s.waiting && len(s.marks) == 0 {
		return 0, err
	}
	looking, cancel := context.WithTimeout(ctx, s.cfg.LeaseTTL/4)
	unseen := s.markGone(looking, page)
	cancel()
	asking, cancel := context.WithTimeout(ctx, s.cfg.LeaseTTL/4)
	lost, unknown := s.lost(asking)
	cancel()
	if len(lost) == 0 {
		return 0, errors.Join(unseen, unknown)
	}
	ctx, cancel = context.WithTimeout(ctx, s.cfg.LeaseTTL/2)
	defer cancel()
	released, err := s.store.ReleaseLost(ctx, s.lease, lost[:min(len(lost), lostReleased)], s.epoch)
	return released, errors.Join(unseen, unknown, err)
}

// page returns the unanswered slices that are next on the lap. It begins another one when that is over, which goes to
// the end that the stream has then: what comes meanwhile would keep it from ending.
func (s *lostSweep) page(ctx context.Context) ([]settle.Unanswered, error) {
	begins := s.at == 0
	if begins && s.waiting && time.Since(s.lap) < lostAgain {
		return nil, nil
	}
	if begins {
		s.end = math.MaxInt64
	}
	page, err := s.store.Unanswered(ctx, s.epoch, lostGrace, s.at, s.end, lostLookups)
	if err != nil {
		return nil, err
	}
	if begins {
		s.lap, s.waiting = time.Now(), len(page) > 0
	}
	if len(page) == 0 {
		s.at = 0
	}
	return page, nil
}

// markGone marks slices whose requests are not in the work stream any more: of those that lie before the stream's
// beginning that is known, the ones of a page are looked for. Where it breaks off, the lap goes on.
func (s *lostSweep) markGone(ctx context.Context, page []settle.Unanswered) error {
	stream, err := s.node.JS.Stream(ctx, wire.StreamWork)
	if err != nil {
		return fmt.Errorf("look for requests: %w", err)
	}
	state := stream.CachedInfo().State
	first := int64(state.FirstSeq)
	before, err := s.store.Unanswered(ctx, s.epoch, lostGrace, s.before, first, lostBatch)
	if err != nil {
		return err
	}
	s.before = 0
	if len(before) == lostBatch {
		s.before = before[lostBatch-1].StreamSeq
	}
	for _, u := range before {
		s.mark(u)
	}
	s.end = min(s.end, int64(state.LastSeq)+1)
	for _, u := range page {
		if u.StreamSeq >= first && s.marks[u.ID] == nil {
			there, err := requestIs(ctx, stream, u)
			if err != nil {
				return err
			}
			if !there {
				s.mark(u)
			}
		}
		s.at = max(u.StreamSeq, first-1)
	}
	if len(page) < lostLookups {
		s.at = 0
	}
	return nil
}

// mark remembers since when a request is gone. One for which there is no room is found again on another lap.
func (s *lostSweep) mark(u settle.Unanswered) {
	if s.marks[u.ID] == nil && len(s.marks) < lostMarks {
		s.marks[u.ID] = &lostMark{since: time.Now()}
	}
}

// gone returns the marked slices that are not answered yet, in no order, and forgets the others.
func (s *lostSweep) gone(ctx context.Context) ([]settle.Unanswered, error) {
	gone, err := s.store.StillUnanswered(ctx, s.epoch, slices.Collect(maps.Keys(s.marks)))
	if err != nil {
		return nil, err
	}
	still := make(map[workqueue.SliceID]*lostMark, len(gone))
	for _, u := range gone {
		still[u.ID] = s.marks[u.ID]
	}
	s.marks = still
	core.Shuffle(gone)
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

// lost returns those of the marked slices of which nothing is left. What is read here is read after the requests were
// found gone; where the reply stream ends, after it was found that a chunk is not suspended. What it has found counts
// also when it cannot look further.
func (s *lostSweep) lost(ctx context.Context) (lost []workqueue.SliceID, err error) {
	gone, err := s.gone(ctx)
	if err != nil || len(gone) == 0 {
		return nil, err
	}
	recorder, err := s.node.JS.Consumer(ctx, wire.StreamReply, wire.RecorderConsumer)
	if err != nil {
		return nil, fmt.Errorf("look at what is recorded: %w", err)
	}
	for _, u := range gone {
		mark := s.marks[u.ID]
		if mark.replies > 0 && time.Since(mark.since) >= lostSettle && recordedUpTo(recorder.CachedInfo(), mark.replies) {
			lost = append(lost, u.ID)
		}
	}
	ended, unknown := s.ended(ctx, gone)
	if len(ended) == 0 {
		return lost, unknown
	}
	replies, err := s.node.JS.Stream(ctx, wire.StreamReply)
	if err != nil {
		return lost, fmt.Errorf("look for replies: %w", err)
	}
	for _, mark := range ended {
		mark.replies = max(1, replies.CachedInfo().State.LastSeq)
	}
	return lost, unknown
}

// ended returns the marks of slices that wait for nothing but their reply, since now. It leaves time for who asks.
func (s *lostSweep) ended(ctx context.Context, gone []settle.Unanswered) (ended []*lostMark, err error) {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.LeaseTTL/8)
	defer cancel()
	flows := &suspensions{js: s.node.JS, of: map[string]stream.Suspended{}, progress: map[string]*progress{}}
	for _, u := range gone {
		mark := s.marks[u.ID]
		if mark.replies > 0 {
			continue
		}
		state, err := flows.stateOf(ctx, u.Endpoint, uuid.UUID(u.ID))
		over := state == ""
		if err == nil && !over { // what lies there may be left over from a stage that ran twice
			over, err = flows.stuck(ctx, u.Endpoint, state, &mark.flow)
		}
		if err != nil {
			return ended, err
		}
		if over {
			ended = append(ended, mark)
		}
	}
	return ended, nil
}

// recordedUpTo reports whether all replies up to a sequence were acknowledged.
func recordedUpTo(recorder *jetstream.ConsumerInfo, sequence uint64) bool {
	return recorder.AckFloor.Stream >= sequence ||
		recorder.NumAckPending == 0 && (recorder.Delivered.Stream >= sequence || recorder.NumPending == 0)
}

// stuckLaps is how many laps a suspended chunk has to stay where it is until it counts as stuck.
const stuckLaps = 3

// suspension is what was seen of a suspended chunk. It goes on when a reply comes to what its flow has asked, and is
// stuck permanently when the question or the answer was lost.
//
// A question or an answer is always a message: what brought the chunk to its present stage, in the stage stream (or the
// work stream), is acknowledged after its questions were stored in the work stream; a question is acknowledged after
// its answer was stored in the stage stream; an answer is acknowledged after it was parked, or after the stage has
// ended, which takes the state away. So each message of the chunk makes a step forward, or ends, when it is
// acknowledged. A lap is over when the consumers of the flow and of all whom it has asked have acknowledged what was
// there at its beginning: what brought it, then questions, then answers. A chunk whose state is the same one after
// three laps has no message left. An endpoint that was asked may be a flow itself, whose chunks lie suspended in
// between: laps begin only while it has none.
type suspension struct {
	state    string // subject
	sequence uint64
	asked    []string
	laps     int
	begun    bool   // a lap
	work     uint64 // the last sequences at its beginning
	stage    uint64
}

// suspensions looks at suspended chunks, each stream and consumer once.
type suspensions struct {
	js       jetstream.JetStream
	of       map[string]stream.Suspended
	progress map[string]*progress
	last     map[string]uint64 // sequences of streams
}

// progress is how far a consumer is; nil: it is not there.
type progress struct{ info *jetstream.ConsumerInfo }

func (p *progress) passed(sequence uint64) bool {
	return p.info != nil && (p.info.AckFloor.Stream >= sequence || p.info.NumPending == 0 && p.info.NumAckPending == 0)
}

// stateOf returns the subject of the state of a chunk, or "" when it is not suspended.
func (f *suspensions) stateOf(ctx context.Context, endpoint string, slice uuid.UUID) (string, error) {
	s, err := f.suspended(ctx, endpoint)
	if err != nil {
		return "", err
	}
	return s.Of(slice), nil
}

func (f *suspensions) suspended(ctx context.Context, endpoint string) (s stream.Suspended, err error) {
	s, known := f.of[endpoint]
	if !known {
		if s, err = stream.SuspendedOf(ctx, f.js, endpoint); err == nil {
			f.of[endpoint] = s
		}
	}
	return s, err
}

// stuck takes the chunk a step further on its laps, and reports whether it has made all of them without having moved.
func (f *suspensions) stuck(ctx context.Context, endpoint, state string, was *suspension) (bool, error) {
	waits, err := stream.WaitsFor(ctx, f.js, state)
	if err != nil {
		return false, err
	}
	if waits.Sequence == 0 || was.state != state || was.sequence != waits.Sequence {
		*was = suspension{state: state, sequence: waits.Sequence, asked: waits.Asked}
		return false, f.begin(ctx, was)
	}
	if was.laps >= stuckLaps {
		return true, nil // its state was read after the last lap was over
	}
	over, err := f.over(ctx, endpoint, was)
	if err != nil || !over {
		return false, err
	}
	if was.begun {
		was.laps++
	}
	return false, f.begin(ctx, was)
}

// begin begins a lap. While one of those asked has suspended chunks of its own, none begins.
func (f *suspensions) begin(ctx context.Context, s *suspension) error {
	s.begun = false
	for _, name := range s.asked {
		nested, err := f.suspended(ctx, name)
		if err != nil {
			return err
		}
		if !nested.Empty() {
			s.laps = 0
			return nil
		}
	}
	if f.last == nil {
		last := map[string]uint64{}
		for _, name := range []string{wire.StreamWork, wire.StreamStage} {
			stream, err := f.js.Stream(ctx, name)
			if err != nil {
				return fmt.Errorf("look at stream %s: %w", name, err)
			}
			last[name] = stream.CachedInfo().State.LastSeq
		}
		f.last = last
	}
	s.begun, s.work, s.stage = true, f.last[wire.StreamWork], f.last[wire.StreamStage]
	return nil
}

// over reports whether all of whom the chunk may be waiting for are done with what there was when the lap began.
func (f *suspensions) over(ctx context.Context, endpoint string, s *suspension) (bool, error) {
	stage, err := f.consumer(ctx, wire.StreamStage, endpoint)
	if err != nil || !stage.passed(s.stage) {
		return false, err
	}
	for _, name := range s.asked {
		work, err := f.consumer(ctx, wire.StreamWork, name)
		if err != nil || !work.passed(s.work) {
			return false, err
		}
	}
	return true, nil
}

func (f *suspensions) consumer(ctx context.Context, stream, endpoint string) (*progress, error) {
	key := stream + " " + endpoint
	if p := f.progress[key]; p != nil {
		return p, nil
	}
	consumer, err := f.js.Consumer(ctx, stream, wire.ConsumerName(endpoint))
	p := &progress{}
	switch {
	case err == nil:
		p.info = consumer.CachedInfo()
	case !errors.Is(err, jetstream.ErrConsumerNotFound):
		return nil, fmt.Errorf("look at consumer %s of %s: %w", endpoint, stream, err)
	}
	f.progress[key] = p
	return p, nil
}
