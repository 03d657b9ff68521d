package workqueue_test

import (
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// exhausted is the answer of a node, or of a service, that gave a slice up after too many deliveries.
func exhausted(s workqueue.Slice) settle.Answer {
	return settle.Answer{Slice: s.ID, Endpoint: storetest.Endpoint, Service: "test",
		Failure: &workqueue.SlotError{Code: workqueue.CodeDeliveries, Message: "m", Retry: true}}
}

// A chunk that kills its services is not tried whole again: it is cut in four, and its pieces are suspects until a
// service has answered them.
func TestExhaustedChunkIsCutAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.Lead()
	run := b.Load(storetest.Chunked(8), 8)
	first := b.One(run)
	if first.Suspect {
		t.Error("a fresh cut is a suspect")
	}
	b.Send(first)
	b.Record(exhausted(first))
	pieces := b.Claim(run, storetest.Plenty)
	if len(pieces) != 4 || b.Disjoint(pieces) != 8 {
		t.Fatalf("cut in %d: %s", len(pieces), b.Dump(run))
	}
	for _, p := range pieces {
		if !p.Suspect || p.Failures != 0 || p.Cause != workqueue.CauseExhausted || p.Attempt != 2 {
			t.Errorf("a piece is %+v", p)
		}
	}
	again := func(want bool, why string) workqueue.Slice {
		t.Helper()
		s := b.One(run)
		if s.Suspect != want {
			t.Errorf("after %s the slice is %+v; want suspect %v", why, s, want)
		}
		return s
	}
	b.Pass(pieces[0].ID)
	if _, err := settle.New(b.Store).Expire(t.Context(), lease, []workqueue.SliceID{pieces[0].ID}); err != nil {
		t.Fatal(err)
	}
	late := again(true, "a deadline")
	split, err := settle.New(b.Store).Split(t.Context(), b.Session, late.ID, late.Mask.Split(1), time.Minute)
	if err != nil || split == nil || !split.Suspect {
		t.Errorf("split off %+v, %v; want a suspect", split, err)
	}
	if rest := b.One(run); !rest.Suspect || rest.Cause != workqueue.CauseSplit {
		t.Errorf("the rest of the split is %+v; want a suspect", rest)
	}
	b.Record(storetest.Faulty(pieces[1], workqueue.SlotError{Code: "flaky", Message: "m", Retry: true}))
	again(false, "an answer")
	b.Record(exhausted(pieces[2]))
	single := b.Claim(run, storetest.Plenty)
	if len(single) != 2 || single[0].Failures != 0 {
		t.Fatalf("two items were cut in %+v", single)
	}
	b.Check()
}

// A database of the version before does not know when the stage and flow streams were made. That they are seen for the
// first time loses nothing; that one of them changes does.
func TestFurtherStreamsAreLearnt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	now := time.Now()
	b.Exec(`INSERT INTO stream_epoch (name, epoch, work_created, reply_created) VALUES ('streams', 7, $1, $1)`,
		now.UTC().Truncate(time.Microsecond))
	seen := session.Created{Work: now, Reply: now, Stage: now, Flow: now}
	observe := func(epoch int64, advances bool) {
		t.Helper()
		current, advanced, err := session.New(b.Store).ObserveStreams(t.Context(), seen)
		if err != nil || current.Epoch != epoch || advanced != advances {
			t.Errorf("epoch %d, advanced %v, %v; want %d, %v", current.Epoch, advanced, err, epoch, advances)
		}
	}
	observe(7, false)
	observe(7, false)
	seen.Stage = now.Add(time.Second)
	observe(8, true)
	seen.Flow = now.Add(time.Second)
	observe(9, true)
	observe(9, false)
}
