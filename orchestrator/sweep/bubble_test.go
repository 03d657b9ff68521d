package sweep

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/core"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// A part that fails keeps no other from its turn, and one that hangs takes no more than its time; nothing is done for a
// node that does not lead any more.
func TestAPartOfTheSweepKeepsNoOtherFromItsTurn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		done, begun := 0, time.Now()
		does := func(err error) func(context.Context) error {
			return func(context.Context) error { done++; return err }
		}
		hangs := func(ctx context.Context) error { done++; <-ctx.Done(); return ctx.Err() }
		broken := errors.New("broken")
		last := does(nil)
		err := inTurn(t.Context(), time.Second, does(broken), hangs, does(nil), does(workqueue.ErrNotLeader), last)
		if done != 4 || time.Since(begun) != time.Second || !errors.Is(err, broken) ||
			!errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%d of 4 were done in %s: %v", done, time.Since(begun), err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done = 0
		err = inTurn(ctx, time.Second, func(context.Context) error { cancel(); return nil }, does(nil))
		if err != nil || done != 0 {
			t.Errorf("a part is done after the end: %v", err)
		}
	})
}

// broker is JetStream with requests in the work stream, by their places, and replies. No endpoint is a flow.
type broker struct {
	jetstream.JetStream

	silent   bool
	requests map[uint64]workqueue.SliceID
	first    uint64        // place of the work stream
	replies  uint64        // the last place of the reply stream
	recorded uint64        // replies up to there are recorded
	slow     time.Duration // how long it looks for a request
}

type brokerStream struct {
	jetstream.Stream

	of   *broker
	name string
}

type brokerConsumer struct {
	jetstream.Consumer

	info jetstream.ConsumerInfo
}

func (b *broker) Stream(_ context.Context, name string) (jetstream.Stream, error) {
	if b.silent {
		return nil, jetstream.ErrNoStreamResponse
	}
	return &brokerStream{of: b, name: name}, nil
}

func (b *broker) Consumer(ctx context.Context, stream, _ string) (jetstream.Consumer, error) {
	if stream == wire.StreamStage {
		return nil, jetstream.ErrConsumerNotFound
	}
	info := jetstream.ConsumerInfo{NumAckPending: 1}
	info.AckFloor.Stream = b.recorded
	return &brokerConsumer{info: info}, ctx.Err()
}

func (c *brokerConsumer) CachedInfo() *jetstream.ConsumerInfo { return &c.info }

func (s *brokerStream) CachedInfo() *jetstream.StreamInfo {
	info := &jetstream.StreamInfo{State: jetstream.StreamState{LastSeq: s.of.replies}}
	if s.name == wire.StreamWork {
		info.State.FirstSeq, info.State.LastSeq = s.of.first, slices.Max(slices.Collect(maps.Keys(s.of.requests)))
	}
	return info
}

func (s *brokerStream) Info(context.Context, ...jetstream.StreamInfoOpt) (*jetstream.StreamInfo, error) {
	return &jetstream.StreamInfo{}, nil // no chunk is suspended
}

func (s *brokerStream) GetMsg(ctx context.Context, place uint64, _ ...jetstream.GetMsgOpt,
) (*jetstream.RawStreamMsg, error) {
	select {
	case <-time.After(s.of.slow):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	id, there := s.of.requests[place]
	if !there {
		return nil, jetstream.ErrMsgNotFound
	}
	return &jetstream.RawStreamMsg{Header: nats.Header{wire.HeaderMsgID: {id.String()}}}, nil
}

// sentSlices are slices without an answer, in the order of their requests' places.
type sentSlices struct {
	all  []settle.Unanswered
	lost []workqueue.SliceID
}

func (s *sentSlices) Unanswered(_ context.Context, _ int64, _ time.Duration, behind, before int64, limit int,
) (page []settle.Unanswered, _ error) {
	for _, u := range s.all {
		if u.StreamSeq > behind && u.StreamSeq < before && len(page) < limit {
			page = append(page, u)
		}
	}
	return page, nil
}

func (s *sentSlices) StillUnanswered(_ context.Context, _ int64, of []workqueue.SliceID) ([]settle.Unanswered, error) {
	others := func(u settle.Unanswered) bool { return !slices.Contains(of, u.ID) }
	return slices.DeleteFunc(slices.Clone(s.all), others), nil
}

func (s *sentSlices) ReleaseLost(_ context.Context, _ workqueue.Lease, lost []workqueue.SliceID, _ int64) (int, error) {
	s.lost = append(s.lost, lost...)
	s.all = slices.DeleteFunc(s.all, func(u settle.Unanswered) bool { return slices.Contains(lost, u.ID) })
	return len(lost), nil
}

// Of many requests that no one takes, more than one look is about, the first are purged, the last is taken out of the
// stream, and one in the middle: all of those are reissued, no other is, and none before what had come to the
// reply stream by then is recorded.
func TestLostRequestsAreFoundBehindOthers(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n, purged = 5*lostLookups + 30, 7
		js := &broker{requests: map[uint64]workqueue.SliceID{}, first: purged + 1, replies: 90, recorded: 89}
		store := &sentSlices{}
		var want []workqueue.SliceID
		for place := range uint64(n) {
			u := settle.Unanswered{ID: workqueue.NewSliceID(), Endpoint: "statement", StreamSeq: int64(place) + 1}
			store.all = append(store.all, u)
			if place < purged || place == n/2 || place == n-1 {
				want = append(want, u.ID)
			} else {
				js.requests[place+1] = u.ID
			}
		}
		js.requests[n+1] = workqueue.NewSliceID() // of another run
		js.requests[n/3] = workqueue.NewSliceID() // a stream that was wiped, and has come as far again
		want = append(want, store.all[n/3-1].ID)
		s := newLostSweep(&Sweeper{node: &core.Core{Log: zap.NewNop(), JS: js}, cfg: Config{LeaseTTL: time.Minute}}, store,
			workqueue.Lease{}, 1)
		rounds := func(k int) {
			for range k {
				testenv.Must(s.round(t.Context()))(t)
				<-time.After(lostEvery)
			}
		}
		rounds(30)
		testenv.Same(t, len(store.lost), 0, "were reissued although a reply is in a node's hands")
		js.recorded = 90
		rounds(3)
		order := func(a, b workqueue.SliceID) int { return slices.Compare(a[:], b[:]) }
		slices.SortFunc(want, order)
		slices.SortFunc(store.lost, order)
		testenv.SameList(t, store.lost, want, "%d requests were reissued", len(store.lost))
	})
}

// What becomes of a slice past its deadline is known by where its request is, and who was handed it.
func TestOverdueSlicesAreSorted(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		of            settle.Overdue
		there, silent bool   // its request; JetStream
		want          string // what becomes of it
	}{
		{settle.Overdue{}, false, false, "gone"}, // it was never in the stream
		{settle.Overdue{StreamSeq: 7}, true, false, "waiting"},
		{settle.Overdue{StreamSeq: 7}, false, false, "gone"},
		{settle.Overdue{StreamSeq: 7}, true, true, ""},
		{settle.Overdue{StreamSeq: 7, Handed: true, HandedFor: time.Minute}, true, false, "silent"},
		{settle.Overdue{StreamSeq: 7, Handed: true, HandedFor: time.Hour}, true, false, "silent doubted"},
		{settle.Overdue{StreamSeq: 7, Handed: true, HandedFor: time.Minute}, true, true, "silent doubted"},
		{settle.Overdue{StreamSeq: 7, Handed: true}, false, false, "lost"},
		{settle.Overdue{StreamSeq: 7, Handed: true, Spent: true}, false, false, "spent"},
		{settle.Overdue{StreamSeq: 2, Handed: true}, true, false, "lost"}, // purged
	} {
		tc.of.ID, tc.of.Endpoint = workqueue.NewSliceID(), "statement"
		synctest.Test(t, func(t *testing.T) {
			const lease = 4 * time.Second
			js := &broker{silent: tc.silent, first: 3, requests: map[uint64]workqueue.SliceID{9: workqueue.NewSliceID()},
				slow: lease * 3 / 8} // there is no time for the second look-up
			if tc.there {
				js.requests[uint64(tc.of.StreamSeq)] = tc.of.ID
			}
			w := &Sweeper{node: &core.Core{Log: zap.NewNop(), JS: js}, streams: well(10 * time.Minute),
				cfg: Config{LeaseTTL: lease}}
			if tc.want == "lost" || tc.want == "spent" { // but only when what had come by then is recorded, or after a while
				js.replies, js.recorded = 5, 4
				s := w.sortOverdue(t.Context(), []settle.Overdue{tc.of})
				testenv.Same(t, len(s.lost)+len(s.spent), 0, "%+v is reissued, though a reply is in a node's hands", tc.of)
				if js.replies++; tc.want == "spent" {
					<-time.After(recordTimeout)
				} else {
					js.recorded = 5
				}
			}
			s := w.sortOverdue(t.Context(), []settle.Overdue{tc.of, tc.of})
			got := ""
			for name, of := range map[string][]workqueue.SliceID{"gone": s.gone, "waiting": s.waiting, "lost": s.lost,
				"spent": s.spent, "silent": s.silent} {
				if len(of) > 0 {
					got += name
				}
			}
			if s.doubted[tc.of.ID] {
				got += " doubted"
			}
			testenv.Same(t, got, tc.want, "%+v, there %t, silent %t: it is", tc.of, tc.there, tc.silent)
		})
	}
}

// well are streams that were there for so long.
type well time.Duration

func (w well) WellFor() time.Duration      { return time.Duration(w) }
func (well) Now() (int64, <-chan struct{}) { return 1, nil }
