package workqueue_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/workqueue"
	pacestore "github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/settle"
)

// ids lists the ids of slices.
func ids(slices ...workqueue.Slice) []workqueue.SliceID {
	var all []workqueue.SliceID
	for _, s := range slices {
		all = append(all, s.ID)
	}
	return all
}

func TestLostStreamsAreIssuedAgainAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.Lead()
	work := time.Now()
	observe := func(work, reply time.Time, epoch int64, advances bool) {
		t.Helper()
		current, advanced, err := session.New(b.Store).ObserveStreams(t.Context(), session.Created{Work: work, Reply: reply})
		if err != nil || current.Epoch != epoch || advanced != advances {
			t.Errorf("epoch %d, advanced %v, %v; want %d, %v", current.Epoch, advanced, err, epoch, advances)
		}
	}
	observe(work, work, 1, true)
	observe(work, work, 1, false)
	run := b.Load(storetest.Request(), 12)
	claimed := b.Claim(run, storetest.Plenty)
	b.Send(claimed[:2]...)
	observe(work, work.Add(time.Second), 2, true) // the reply stream alone was made anew
	n, err := settle.New(b.Store).ReleaseLostStreams(t.Context(), lease)
	if err != nil || n != 2 {
		t.Errorf("released %d slices, %v; want the two that were sent", n, err)
	}
	b.Check()
	for _, s := range b.Claim(run, storetest.Plenty) {
		if s.Cause != workqueue.CauseStreams || s.Failures != 0 {
			t.Errorf("issued again as %+v", s)
		}
		if _, err := settle.New(b.Store).MarkSent(t.Context(),
			[]workqueue.Sent{{ID: s.ID, StreamSeq: 1, StreamsEpoch: 2}}); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := settle.New(b.Store).ReleaseLostStreams(t.Context(), lease); err != nil || n != 0 {
		t.Errorf("released %d slices of the present epoch, %v", n, err)
	}
	if err := session.New(b.Store).AdvanceStreams(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if err := session.New(b.Store).AdvanceStreams(t.Context(), 2); err != nil { // another node that noticed the same
		t.Fatal(err)
	}
	observe(work, work.Add(time.Second), 3, false)
	if n, err := settle.New(b.Store).ReleaseLostStreams(t.Context(), lease); err != nil || n != 2 {
		t.Errorf("released %d slices after the rewind, %v; want 2", n, err)
	}
	b.Check()
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
		if advances != 1 {
			t.Errorf("%d nodes opened epoch %d", advances, epoch)
		}
	}
}

// Leader work whose lease has passed to another changes nothing, also when the epoch moves in the middle of it.
func TestLeaderWorkIsFencedByTheEpoch(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old := b.Lead()
	run := b.Load(storetest.Request(), 12)
	claimed := b.Claim(run, storetest.Plenty)
	b.Send(claimed[0])
	b.Pass(ids(claimed...)...)
	b.Exec(`UPDATE leader SET expires_at = tranche_now()`)
	other := b.Open()
	lease, err := session.New(b.Store).Lead(t.Context(), other, storetest.LeaseTTL)
	if err != nil || lease.Epoch != old.Epoch+1 {
		t.Fatalf("lease %+v, %v; want the next epoch", lease, err)
	}
	if _, err := session.New(b.Store).Lead(t.Context(), b.Session, storetest.LeaseTTL); !errors.Is(err,
		workqueue.ErrNotLeader) {
		t.Errorf("a second leader: %v; want ErrNotLeader", err)
	}
	b.Expire(b.Session)
	ctx := t.Context()
	for name, work := range map[string]func(workqueue.Lease) error{
		"dead sessions": func(l workqueue.Lease) error {
			_, err := settle.New(b.Store).ReleaseDeadSessions(ctx,
				l)
			return err
		},
		"lost streams": func(l workqueue.Lease) error {
			_, err := settle.New(b.Store).ReleaseLostStreams(ctx,
				l)
			return err
		},
		"expire": func(l workqueue.Lease) error {
			_, err := settle.New(b.Store).Expire(ctx, l, ids(claimed[0]))
			return err
		},
		"unsent": func(l workqueue.Lease) error {
			_, err := settle.New(b.Store).ReleaseUnsent(ctx, l, ids(claimed[1]))
			return err
		},
		"extend": func(l workqueue.Lease) error { return settle.New(b.Store).Extend(ctx, l, ids(claimed[0])) },
	} {
		if err := work(old); !errors.Is(err, workqueue.ErrNotLeader) {
			t.Errorf("%s under the old epoch: %v; want ErrNotLeader", name, err)
		}
	}
	b.WantTally(run, storetest.Tally{Live: 12})
	n := b.Number(`SELECT count(*) FROM work_slice WHERE state IN ('claimed', 'sent') AND deadline <= tranche_now()`)
	if n != 3 {
		t.Errorf("%d slices are as they were; want 3", n)
	}
	if n, err := settle.New(b.Store).Expire(ctx, lease, ids(claimed[0])); err != nil || n != 1 {
		t.Errorf("the new leader expired %d, %v", n, err)
	}
	b.Check()
}

// A leader that stops in the middle of its work keeps nobody from taking over, and nothing of that work is committed
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
		if n, err := settle.New(b.Store).Expire(t.Context(), lease, ids(s)); !errors.Is(err, workqueue.ErrNotLeader) {
			t.Errorf("expired %d, %v; want ErrNotLeader: another leads since the work began", n, err)
		}
	})
	b.Until("the sweep waits for the slice", func() bool { return b.Waiters() == 1 })
	if again, err := session.New(b.Store).Lead(t.Context(), b.Session, storetest.LeaseTTL); err != nil || again != lease {
		t.Errorf("prolonged to %+v, %v; its own work is in the way", again, err)
	}
	b.Exec(`UPDATE leader SET expires_at = tranche_now()`)
	next, err := session.New(b.Store).Lead(t.Context(), b.Open(), storetest.LeaseTTL)
	if err != nil || next.Epoch != lease.Epoch+1 {
		t.Fatalf("lease %+v, %v; want the next epoch, at once", next, err)
	}
	release()
	wg.Wait()
	b.WantTally(run, storetest.Tally{Live: 4})
	if n, err := settle.New(b.Store).Expire(t.Context(), next, ids(s)); err != nil || n != 1 {
		t.Errorf("the new leader expired %d, %v", n, err)
	}
	b.Check()
}

// Between its last look at the lease and its commit, nobody takes it over from a leader: whatever it commits, it
// commits before the next epoch.
func TestLeaseIsHeldThroughTheCommit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.Lead()
	release := b.HoldRows(`SELECT 1 FROM leader WHERE epoch = $1 FOR KEY SHARE`, lease.Epoch) // as the last look does
	if again, err := session.New(b.Store).Lead(t.Context(), b.Session, storetest.LeaseTTL); err != nil || again != lease {
		t.Errorf("prolonged to %+v, %v", again, err)
	}
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

func TestSplitKeepsEveryItem(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.Load(storetest.Chunked(10), 10)
	s := b.One(run)
	first, err := settle.New(b.Store).Split(t.Context(), b.Session, s.ID, s.Mask.Split(3), time.Minute)
	if err != nil || first == nil {
		t.Fatalf("split off %+v, %v", first, err)
	}
	b.Check()
	again, err := settle.New(b.Store).Split(t.Context(), b.Session, s.ID, s.Mask.Split(3), time.Minute)
	if err != nil || again != nil {
		t.Errorf("the second split made %+v, %v", again, err)
	}
	pieces := append(b.Claim(run, storetest.Plenty), *first)
	if len(pieces) != 4 || b.Disjoint(pieces) != 10 {
		t.Fatalf("%d pieces", len(pieces))
	}
	if v := b.Record(storetest.Whole(s)).Verdicts[0]; !v.Stale {
		t.Errorf("a reply to the split slice: %+v", v)
	}
	b.Send(pieces...)
	for _, p := range pieces {
		if p.Attempt != 1 || p.Failures != 0 || p.Cause != workqueue.CauseSplit {
			t.Errorf("piece %+v", p)
		}
		b.Record(storetest.Whole(p))
	}
	b.WantState(run, "completed", 1)
	b.Check()
}

// A request that is cut in pieces must not become more requests than an endpoint or a step may have.
func TestSplitKeepsToTheLimits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	budget := 1
	if _, err := pacestore.New(b.Store).ChangeEndpoint(t.Context(), pacestore.EndpointChange{Endpoint: storetest.Endpoint,
		MaxInFlight: &budget}, "ann"); err != nil {
		t.Fatal(err)
	}
	run := b.Load(storetest.Chunked(10), 10)
	for s := b.One(run); ; s = b.One(run) {
		if s.Mask.Count() > 3 {
			first, err := settle.New(b.Store).Split(t.Context(), b.Session, s.ID, s.Mask.Split(3), time.Minute)
			if err != nil || first == nil {
				t.Fatalf("split off %+v, %v", first, err)
			}
			s = *first
		}
		out := b.Number(`SELECT count(*) FROM work_slice WHERE state IN ('claimed', 'sent')`)
		if more := b.Claim(run, storetest.Plenty); out != budget || len(more) != 0 {
			t.Fatalf("%d requests are out and %d were claimed; the budget is %d", out, len(more), budget)
		}
		if len(b.Record(storetest.Whole(s)).Completed) > 0 {
			break
		}
	}
	b.Check()
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
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			run := b.Load(storetest.Request(), 8)
			s := b.One(run)
			if _, err := settle.New(b.Store).Split(t.Context(), b.Session, s.ID, masks, time.Minute); err == nil {
				t.Error("it was split")
			}
			b.Check()
			b.WantTally(run, storetest.Tally{Ready: 4, Live: 4})
		})
	}
}
