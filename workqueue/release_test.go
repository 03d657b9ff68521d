package workqueue_test

import (
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/settle"
)

func ids(slices ...workqueue.Slice) []workqueue.SliceID {
	var all []workqueue.SliceID
	for _, s := range slices {
		all = append(all, s.ID)
	}
	return all
}

// Many nodes see the same new streams: one of them opens the epoch.
func TestStreamEpochGrowsOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	now := time.Now()
	for epoch := int64(1); epoch <= 3; epoch++ {
		var mu sync.Mutex
		var wg sync.WaitGroup
		advances := 0
		for range 8 {
			wg.Go(func() {
				seen := session.Created{Work: now, Reply: now, Stage: now, Flow: now.Add(time.Duration(epoch) * time.Second)}
				current, advanced, err := session.New(b.Store).ObserveStreams(t.Context(), seen)
				mu.Lock()
				defer mu.Unlock()
				if err != nil || current.Epoch != epoch {
					t.Errorf("epoch %d, %v; want %d", current.Epoch, err, epoch)
				}
				if advanced {
					advances++
				}
			})
		}
		wg.Wait()
		testenv.Same(t, advances, 1, "nodes opened epoch %d", epoch)
	}
}

// A leader that stops in the middle of its work keeps no one from taking over, and nothing of that work is committed
// afterwards; nor does its work keep itself from prolonging the lease.
func TestLeaseIsCheckedAtTheEndOfItsWork(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.Lead()
	run := b.Load(storetest.Request(), 4)
	s := b.One(run)
	b.Send(s)
	b.Pass(s.ID)
	release := b.HoldRows(`SELECT 1 FROM work_slice WHERE id = $1 FOR UPDATE`, s.ID)
	var wg sync.WaitGroup
	wg.Go(func() {
		_, err := settle.New(b.Store).Expire(t.Context(), lease, ids(s))
		testenv.Is(t, err, workqueue.ErrNotLeader, "another leads since the work began")
	})
	b.Until("the sweep waits for the slice", func() bool { return b.Waiters() == 1 })
	testenv.Same(t, testenv.Must(session.New(b.Store).Lead(t.Context(), b.Session, storetest.LeaseTTL))(t), lease,
		"prolonged to")
	b.Exec(`UPDATE leader SET expires_at = tranche_now()`)
	next := testenv.Must(session.New(b.Store).Lead(t.Context(), b.Open(), storetest.LeaseTTL))(t)
	testenv.MustSame(t, next.Epoch, lease.Epoch+1, "lease %+v", next)
	release()
	wg.Wait()
	b.WantTally(run, storetest.Tally{Live: 4})
	testenv.Same(t, testenv.Must(settle.New(b.Store).Expire(t.Context(), next, ids(s)))(t), 1, "the new leader expired")
	b.Check()
}

// Between its last look at the lease and its commit, no one takes it over from a leader: whatever it commits, it
// commits before the next epoch.
func TestLeaseIsHeldThroughTheCommit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.Lead()
	release := b.HoldRows(`SELECT 1 FROM leader WHERE epoch = $1 FOR KEY SHARE`, lease.Epoch) // as the last look does
	testenv.Same(t, testenv.Must(session.New(b.Store).Lead(t.Context(), b.Session, storetest.LeaseTTL))(t), lease,
		"prolonged to")
	b.Exec(`UPDATE leader SET expires_at = tranche_now()`)
	var wg sync.WaitGroup
	wg.Go(func() {
		if next, err := session.New(b.Store).Lead(t.Context(), b.Open(), storetest.LeaseTTL); err != nil ||
			next.Epoch != lease.Epoch+1 {
			t.Errorf("lease %+v, %v", next, err)
		}
	})
	b.Until("the taker waits for the commit", func() bool { return b.Waiters() == 1 })
	release()
	wg.Wait()
}

// A split that forgets an item, or gives one to two pieces, must not come into the database.
func TestSplitRefusesMasksThatDoNotAddUp(t *testing.T) {
	t.Parallel()
	for name, masks := range map[string][]bitfield.Set{
		"an item lost":   {bitfield.Of(0, 1), bitfield.Of(2)},
		"an item twice":  {bitfield.Of(0, 1), bitfield.Of(1, 2, 3)},
		"a foreign item": {bitfield.Of(0, 1), bitfield.Of(2, 3, 4)},
		"no pieces":      {},
		"an empty piece": {bitfield.Full(4), bitfield.Set{}},
	} {
		subtest(t, name, func(b *bench) {
			run := b.Load(storetest.Request(), 8)
			s := b.One(run)
			_, err := settle.New(b.Store).Split(b.Context(), b.Session, s.ID, masks, time.Minute, "cut")
			testenv.Fails(b, err, "it was split")
			b.Check()
			b.WantTally(run, storetest.Tally{Ready: 4, Live: 4})
		})
	}
}

// hand marks slices as sent, and as handed to services.
func (b *bench) hand(claimed ...workqueue.Slice) {
	b.Helper()
	b.Send(claimed...)
	b.Exec(`UPDATE work_slice SET delivered_at = tranche_now() WHERE id = ANY ($1)`, ids(claimed...))
}

// judge has the deadlines of slices pass and says which of them are held against their items.
func (b *bench) judge(doubted map[workqueue.SliceID]bool, claimed ...workqueue.Slice) map[workqueue.SliceID]bool {
	b.Helper()
	b.Pass(ids(claimed...)...)
	return testenv.Must(settle.New(b.Store).Blamed(b.Context(), ids(claimed...), doubted))(b)
}

// What is sent along with others that are answered is to blame for its silence; what no one else was answered beside,
// or before, or while JetStream was unavailable, is not.
func TestSilenceIsBlamedWhenOthersWereAnswered(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		others  func(b *bench, run workqueue.RunID, other workqueue.Slice)
		doubted bool
		blamed  bool
	}{
		"another was answered": {others: func(b *bench, _ workqueue.RunID,
			o workqueue.Slice) {
			b.Record(storetest.Whole(o))
		},
			blamed: true},
		"another was refused": {others: func(b *bench, _ workqueue.RunID, o workqueue.Slice) { b.Record(refusing(o)) },
			blamed: true},
		"JetStream was unavailable": {others: func(b *bench, _ workqueue.RunID, o workqueue.Slice) {
			b.Record(storetest.Whole(o))
		}, doubted: true},
		"no one was answered": {others: func(*bench, workqueue.RunID, workqueue.Slice) {}},
		"another was abandoned by a node": {others: func(b *bench, _ workqueue.RunID, o workqueue.Slice) {
			b.Record(exhausted(o))
		}},
		"one that was sent before": {others: func(b *bench, _ workqueue.RunID, o workqueue.Slice) {
			b.Exec(`UPDATE work_slice SET sent_at = sent_at - interval '1 minute' WHERE id = $1`, o.ID)
			b.Record(storetest.Whole(o))
		}},
		"at another endpoint": {others: func(b *bench, _ workqueue.RunID, o workqueue.Slice) {
			b.Exec(`UPDATE work_slice SET endpoint = 'invoice' WHERE id = $1`, o.ID)
			a := storetest.Whole(o)
			a.Endpoint = "invoice"
			b.Record(a)
		}},
	} {
		subtest(t, name, func(b *bench) {
			run := b.Load(storetest.Chunked(1), 2)
			claimed := b.Claim(run, storetest.Plenty)
			b.hand(claimed...)
			late := claimed[0]
			tc.others(b, run, claimed[1])
			testenv.Same(b, b.judge(map[workqueue.SliceID]bool{late.ID: tc.doubted}, late)[late.ID], tc.blamed, "blamed")
		})
	}
}

// An item whose services never answer anybody is reissued without blame, five times; from then on each silence
// costs it an attempt, and it comes to its end. So does one whose replies are lost repeatedly.
func TestSilenceComesToAnEnd(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.Lead()
	req := storetest.Chunked(1)
	req.Steps[0].MaxAttempts = 2
	run := b.Load(req, 1)
	for n := 1; n <= 7; n++ {
		s := b.One(run)
		want := max(0, n-6)
		if s.Attempt != n || s.Failures != want || n > 1 && n < 7 && s.Cause != workqueue.CauseSilence {
			t.Fatalf("issue %d: %+v; want %d failures", n, s, want)
		}
		b.hand(s)
		end := settle.New(b.Store).ExpireWithoutPenalty
		if b.judge(nil, s)[s.ID] {
			end = settle.New(b.Store).Expire
		}
		testenv.MustSame(t, testenv.Must(end(t.Context(), lease, ids(s)))(t), 1, "issue %d: ended", n)
		b.hurry(run)
		b.Check()
	}
	b.WantTally(run, storetest.Tally{Failed: 1})
	testenv.Same(t, b.Number(`SELECT count(*) FROM work_result WHERE error_code = 'deadline'`), 1,
		"it did not fail by its deadline")
}

func TestLostRepliesAreCountedInTheEnd(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.Lead()
	run := b.Load(storetest.Chunked(1), 1)
	s := b.One(run)
	b.hand(s)
	b.Pass(s.ID)
	testenv.MustSame(t, testenv.Must(settle.New(b.Store).ReleaseAcknowledged(t.Context(), lease, ids(s)))(t), 1,
		"released")
	again := b.One(run)
	if again.Failures != 0 || again.Attempt != 2 || again.Cause != workqueue.CauseStreams {
		t.Errorf("after a lost reply: %+v", again)
	}
	b.hand(again)
	for attempt, spent := range map[int]bool{2: false, 49: false, 50: true} {
		b.Exec(`UPDATE work_slice SET attempt = $2, deadline = tranche_now() WHERE id = $1`, again.ID, attempt)
		late, err := settle.New(b.Store).OverdueSlices(t.Context(), storetest.Plenty)
		if err != nil || len(late) != 1 || late[0].Spent != spent || late[0].HandedFor <= 0 || late[0].HandedFor > time.Hour {
			t.Errorf("issue %d: %+v, %v; want spent %v", attempt, late, err, spent)
		}
	}
}

// A mark of another database says nothing of this one; a timeline that has changed says that another server took over.
func TestMarksOfOtherDatabasesAndTimelines(t *testing.T) {
	t.Parallel()
	b := setup(t)
	marks := session.New(b.Store)
	here := testenv.Must(marks.RaiseMark(t.Context(), testenv.Must(marks.ReadMark(t.Context()))(t)))(t)
	other := session.Mark{Lineage: uuid.New(), Beat: 1000, Epoch: 9}
	if here.Behind(other) || here.Later(other) != here {
		t.Error("a mark of another database counts")
	}
	if gap, err := marks.PassGap(t.Context(), other); gap != nil || err != nil {
		t.Errorf("a gap %+v, %v by a mark of another database", gap, err)
	}
	b.Exec(`UPDATE database_mark SET timeline = timeline + 1`)
	if m := testenv.Must(marks.RaiseMark(t.Context(), here))(t); !m.Moved || m.Beat != here.Beat {
		t.Errorf("another server took over, and the mark is %+v", m)
	}
	gap, err := marks.PassGap(t.Context(), here)
	if err != nil || gap == nil || gap.Lost {
		t.Errorf("the gap is %+v, %v; want one in which nothing is known to be lost", gap, err)
	}
	const harmless = `SELECT count(*) FROM run_event WHERE kind = 'database.rewound' AND NOT (payload->>'lost')::bool`
	testenv.Same(t, b.Number(harmless), 1, "events report it")
	if m := testenv.Must(marks.ReadMark(t.Context()))(t); m.Moved {
		t.Errorf("after it the mark is %+v", m)
	}
	if gap, err := marks.PassGap(t.Context(), here); gap != nil || err != nil {
		t.Errorf("it is passed again: %+v, %v", gap, err)
	}
}
