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
	// lostGrace is the least age of a sent slice whose request is looked up.
	lostGrace = 5 * time.Second
	// lostSettle is how long a request must be gone. The proof does not need it, but after a purge a recorder or a
	// service may still be processing what was removed.
	lostSettle = 3 * time.Second
	// lostEvery is the time between rounds, lostAgain the least time between lookups of the same request.
	lostEvery, lostAgain = 2 * time.Second, 5 * time.Second
	// Limits of a round: slices before the stream's first sequence, requests looked up one by one, marks, reissues.
	lostBatch, lostLookups, lostMarks, lostReleased = 2000, 50, 4 * 2000, 1000
)

// lostSweep finds slices with neither a request nor a reply left in the streams: a stream was purged, or a disk lost
// acknowledged messages in a stream that seems complete. They are reissued before their deadlines.
//
// Nothing else counts as lost. The proof uses the order of events, not times:
//
//  1. A service acknowledges a request only after the reply stream has acknowledged the last message of its reply
//     (or, for a flow, after the flow stream has acknowledged the state of the suspended chunk).
//  2. A node acknowledges a reply only after the commit that records or quarantines it.
//  3. So when a request is gone from the work stream, its reply is at or before the last sequence of the reply stream
//     read after that (or the chunk is suspended, see suspensions). Suppose the recorders' consumer later has nothing
//     up to there left to deliver or be acknowledged. If the slice, under its lock, is then still not fully answered
//     and has nothing in quarantine, no reply to it exists.
//
// A reply that a recorder is processing is not acknowledged yet. A redelivered request is in the work stream.
// Messages in a recreated stream have another epoch. A reply that arrives anyway, after a purge, is stale and changes
// nothing.
//
// Marks carry the first finding over to later rounds. Requests are looked up in laps over the stream, some per round,
// so that old ones do not hold up the rest. It is for one goroutine.
type lostSweep struct {
	*Sweeper

	store   lostStore
	lease   workqueue.Lease
	epoch   int64
	marks   map[workqueue.SliceID]*lostMark
	lap     time.Time // when the current lap began
	waiting bool      // the lap found unanswered slices
	at, end int64     // sequences: where the lap continues, 0 at its end; and where it ends
	before  int64     // like at, for requests before the stream's first sequence
}

// lostStore finds slices without an answer, and reissues lost ones. See [settle.Store].
type lostStore interface {
	Unanswered(ctx context.Context, epoch int64, longer time.Duration, behind, before int64,
		limit int) ([]settle.Unanswered, error)
	StillUnanswered(ctx context.Context, epoch int64, of []workqueue.SliceID) ([]settle.Unanswered, error)
	ReleaseLost(ctx context.Context, lease workqueue.Lease, lost []workqueue.SliceID, epoch int64) (int, error)
}

type lostMark struct {
	since   time.Time // when the request was found to be gone
	replies uint64    // last sequence of the reply stream after that; 0: the chunk may be suspended
	flow    suspension
}

func newLostSweep(w *Sweeper, store lostStore, lease workqueue.Lease, epoch int64) *lostSweep {
	return &lostSweep{Sweeper: w, store: store, lease: lease, epoch: epoch, marks: map[workqueue.SliceID]*lostMark{}}
}

// FindingLost is the leader task that reissues lost slices.
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
		return w.node.Slower(lostEvery), err
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

// page returns the next slices of the lap, or of a new one, which ends at the stream's present end: otherwise new
// requests would prolong it.
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

// markGone marks slices whose requests are gone: all before the stream's first sequence, and those of the page. After
// an error the lap continues there.
func (s *lostSweep) markGone(ctx context.Context, page []settle.Unanswered) error {
	stream, err := s.node.JS.Stream(ctx, wire.StreamWork)
	if err != nil {
		return fmt.Errorf("find requests: %w", err)
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

// mark notes since when a request is gone. Beyond lostMarks it is left to another lap.
func (s *lostSweep) mark(u settle.Unanswered) {
	if s.marks[u.ID] == nil && len(s.marks) < lostMarks {
		s.marks[u.ID] = &lostMark{since: time.Now()}
	}
}

// gone returns the marked slices that are still unanswered, in random order, and drops the other marks.
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

func requestIs(ctx context.Context, stream jetstream.Stream, u settle.Unanswered) (bool, error) {
	msg, err := stream.GetMsg(ctx, uint64(u.StreamSeq))
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("find the request of slice %s: %w", u.ID, err)
	}
	return msg.Header.Get(wire.HeaderMsgID) == u.ID.String(), nil
}

// lost returns the marked slices that are lost. The order matters: the consumer is read after the requests were found
// to be gone, the end of the reply stream after a chunk was found not to be suspended. With an error it still returns
// those found so far.
func (s *lostSweep) lost(ctx context.Context) (lost []workqueue.SliceID, err error) {
	gone, err := s.gone(ctx)
	if err != nil || len(gone) == 0 {
		return nil, err
	}
	recorder, err := s.node.JS.Consumer(ctx, wire.StreamReply, wire.RecorderConsumer)
	if err != nil {
		return nil, fmt.Errorf("check what is recorded: %w", err)
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
		return lost, fmt.Errorf("find replies: %w", err)
	}
	for _, mark := range ended {
		mark.replies = max(1, replies.CachedInfo().State.LastSeq)
	}
	return lost, unknown
}

// ended returns the marks of slices that can now only wait for their reply. It leaves time for the caller.
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
		if err == nil && !over { // the state may be left over from a stage that ran twice
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

func recordedUpTo(recorder *jetstream.ConsumerInfo, sequence uint64) bool {
	return recorder.AckFloor.Stream >= sequence ||
		recorder.NumAckPending == 0 && (recorder.Delivered.Stream >= sequence || recorder.NumPending == 0)
}

// stuckLaps is the number of laps without change after which a suspended chunk counts as stuck.
const stuckLaps = 3

// suspension is what is known of a suspended chunk. It continues when a nested request is answered, and is stuck
// permanently if a nested request or its answer was lost.
//
// A nested request or answer always exists as a message. The message that brought the chunk to its stage, in the
// stage or work stream, is acknowledged after its nested requests were stored in the work stream; a nested request
// after its answer was stored in the stage stream; an answer after it was parked, or after the stage ended, which
// removes the state. So every acknowledged message is a step forward, or the end. A lap ends when the consumers of
// the flow and of all endpoints it called have acknowledged what existed at its beginning: first the message that
// brought the chunk, then nested requests, then answers. A chunk whose state is unchanged after three laps has no
// message left. A called endpoint may itself be a flow with suspended chunks: laps begin only while it has none.
type suspension struct {
	state    string // subject
	sequence uint64
	asked    []string
	laps     int
	begun    bool   // whether a lap has begun
	work     uint64 // last sequences at its beginning
	stage    uint64
}

// suspensions reads suspended chunks, and each stream and consumer once.
type suspensions struct {
	js       jetstream.JetStream
	of       map[string]stream.Suspended
	progress map[string]*progress
	last     map[string]uint64 // sequences of streams
}

// progress is a consumer's progress; info is nil if it does not exist.
type progress struct{ info *jetstream.ConsumerInfo }

func (p *progress) passed(sequence uint64) bool {
	return p.info != nil && (p.info.AckFloor.Stream >= sequence || p.info.NumPending == 0 && p.info.NumAckPending == 0)
}

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

// stuck advances a chunk's laps, and reports whether it completed all of them without a change.
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
		return true, nil // its state was read after the last lap ended
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

// begin begins a lap, unless a called endpoint has suspended chunks.
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
				return fmt.Errorf("check stream %s: %w", name, err)
			}
			last[name] = stream.CachedInfo().State.LastSeq
		}
		f.last = last
	}
	s.begun, s.work, s.stage = true, f.last[wire.StreamWork], f.last[wire.StreamStage]
	return nil
}

// over reports whether the consumers that the chunk may wait for have acknowledged what existed when the lap began.
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
		return nil, fmt.Errorf("check consumer %s of %s: %w", endpoint, stream, err)
	}
	f.progress[key] = p
	return p, nil
}
