package workqueue_test

import (
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// A final message announces slots that cannot be taken, and leaves items out. There is nothing to wait for: the slice
// is concluded at once, and the items left out come again.
func TestRecordConcludesWhenSlotsAnnouncedCannotBeTaken(t *testing.T) {
	t.Parallel()
	for name, slots := range map[string][]workqueue.Ordinal{
		"foreign":             {0, 1, 77},
		"doubled":             {0, 1, 1},
		"foreign and doubled": {0, 1, 1, 77},
		"more than there are": {0, 1, 0, 1, 0, 1, 77, 78},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run := b.Load(storetest.Request(), 4)
			s := b.One(run)
			b.Send(s)
			if v := b.Record(storetest.Answer(s, slots...)).Verdicts[0]; v.Taken != 2 || v.Stale {
				t.Errorf("%+v; want 2 taken", v)
			}
			if n := b.Number(`SELECT count(*) FROM work_slice WHERE id = $1 AND state = 'recorded'`, s.ID); n != 1 {
				t.Errorf("the slice waits for its deadline: %s", b.Dump(run))
			}
			b.WantTally(run, storetest.Tally{Live: 2, Done: 2})
			again := b.One(run)
			if again.Cause != workqueue.CauseUnanswered || again.Failures != 1 || again.Mask.Count() != 2 {
				t.Errorf("issued again as %+v; want the 2 items left out", again)
			}
			b.Record(storetest.Whole(again))
			b.WantState(run, "completed", 1)
			b.Check()
		})
	}
}

// While messages of a reply are still to come, the slice stays open: the final one may be faster than the others.
func TestRecordWaitsForTheOtherMessagesOfAReply(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Request(), 4)
	s := b.One(run)
	final, other := storetest.Answer(s, 2, 3, 3), storetest.Answer(s, 0, 1)
	final.Answered, other.Answered = 5, -1
	b.Record(final)
	b.WantTally(run, storetest.Tally{Live: 2, Done: 2})
	if n := b.Number(`SELECT count(*) FROM work_slice WHERE run_id = $1`, run); n != 1 {
		t.Errorf("the slice was concluded too early: %s", b.Dump(run))
	}
	b.Record(other)
	b.WantState(run, "completed", 1)
	b.Check()
}

// More slices than one transaction takes were lost with the streams: all of them are issued again, in several.
func TestLostStreamsOfManySlices(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.Lead()
	made := time.Now()
	if _, _, err := session.New(b.Store).ObserveStreams(t.Context(),
		session.Created{Work: made, Reply: made}); err != nil {
		t.Fatal(err)
	}
	const many = 2500
	req := storetest.Chunked(1)
	req.Steps[0].InFlight = many
	run := b.Load(req, many)
	all := func() (claimed []workqueue.Slice) { // a claim of all would take longer than it may on a busy machine
		for range many / 500 {
			claimed = append(claimed, b.Claim(run, 500)...)
		}
		return claimed
	}
	claimed := all()
	if len(claimed) != many {
		t.Fatalf("claimed %d slices of %d", len(claimed), many)
	}
	b.Send(claimed...)
	if err := session.New(b.Store).AdvanceStreams(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if n, err := settle.New(b.Store).ReleaseLostStreams(t.Context(), lease); err != nil || n != many {
		t.Errorf("released %d slices, %v; want %d", n, err, many)
	}
	transactions := b.Number(`SELECT count(DISTINCT xmin::text) FROM work_slice WHERE state = 'expired'`)
	largest := b.Number(`SELECT max(n) FROM (SELECT count(*) n FROM work_slice WHERE state = 'expired'
		GROUP BY xmin::text) AS sizes`)
	if transactions < 2 || largest > 2000 {
		t.Errorf("%d transactions, the largest of %d slices; want none of more than 2000", transactions, largest)
	}
	b.WantTally(run, storetest.Tally{Live: many})
	again := all()
	if n := b.Disjoint(again); n != many {
		t.Errorf("%d items came again of %d", n, many)
	}
	for _, s := range again {
		if s.Failures != 0 {
			t.Fatalf("%+v counts as a failure", s)
		}
	}
	b.Check()
}

// The confirmation of a request may come when its slice is no longer claimed: it changes nothing then.
func TestMarkSentTouchesOnlyWhatIsClaimed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.Lead()
	run := b.Load(storetest.Request(), 24)
	claimed := b.Claim(run, 5)
	recorded, partly, expired, sent, fresh := claimed[0], claimed[1], claimed[2], claimed[3], claimed[4]
	b.Record(storetest.Whole(recorded), storetest.Answer(partly, storetest.Ordinals(partly)[0]))
	b.Pass(expired.ID)
	if n, err := settle.New(b.Store).ReleaseUnsent(t.Context(), lease, []workqueue.SliceID{expired.ID}); err != nil ||
		n != 1 {
		t.Fatalf("released %d, %v", n, err)
	}
	b.Send(sent)
	const read = `SELECT string_agg(xmin::text || s::text, E'\n' ORDER BY id) FROM work_slice s WHERE id <> $1`
	row := func() (text string) {
		t.Helper()
		if err := b.Pool.QueryRow(t.Context(), read, fresh.ID).Scan(&text); err != nil {
			t.Fatal(err)
		}
		return text
	}
	before := row()
	var marks []workqueue.Sent
	for _, s := range append(claimed, workqueue.Slice{ID: workqueue.NewSliceID()}) {
		marks = append(marks, workqueue.Sent{ID: s.ID, StreamSeq: 99, StreamsEpoch: 7})
	}
	if _, err := settle.New(b.Store).MarkSent(t.Context(), marks); err != nil {
		t.Fatal(err)
	}
	if after := row(); after != before {
		t.Errorf("slices that were not claimed are now\n%s\nbefore they were\n%s", after, before)
	}
	if n := b.Number(`SELECT stream_seq FROM work_slice WHERE id = $1 AND state = 'sent'`, fresh.ID); n != 99 {
		t.Errorf("the claimed one has the place %d; want 99", n)
	}
	b.Check()
}
