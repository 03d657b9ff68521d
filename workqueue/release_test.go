package workqueue_test

import (
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/dispatch"
	pacestore "github.com/tranchehq/tranche/workqueue/pace"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/settle"
	"github.com/tranchehq/tranche/workqueue/streams"
)

// ids lists the ids of slices.
func ids(slices ...workqueue.Slice) []workqueue.SliceID {
	var all []workqueue.SliceID
	for _, s := range slices {
		all = append(all, s.ID)
	}
	return all
}

func TestDeadSessionsClaimsAreIssuedAgain(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.lead()
	run := b.load(request(), 12)
	dead := b.open()
	req := b.claimRequest(run, 2)
	req.Session = dead
	out, err := dispatch.New(b.store).Claim(t.Context(), req)
	lost := out.Slices
	if err != nil || len(lost) != 2 {
		t.Fatalf("claimed %d slices, %v", len(lost), err)
	}
	kept := b.one(run)
	b.send(lost[1])
	b.expire(dead)
	n, err := settle.New(b.store).ReleaseDeadSessions(t.Context(), lease)
	if err != nil || n != 1 {
		t.Errorf("released %d slices, %v; want the one that was claimed and not sent", n, err)
	}
	b.check()
	again := b.one(run)
	if again.Mask != lost[0].Mask || again.Attempt != 2 || again.Failures != 0 || again.Cause != workqueue.CauseSession {
		t.Errorf("issued again as %+v", again)
	}
	// The dead node wakes up: its late writes touch nothing, but a reply to what it had sent counts.
	b.send(lost[0])
	piece, err := settle.New(b.store).Split(t.Context(), dead, lost[0].ID, lost[0].Mask.Split(1), time.Minute)
	if err != nil || piece != nil {
		t.Errorf("a split of a released slice made %+v, %v", piece, err)
	}
	verdicts := b.record(whole(lost[0]), whole(lost[1]), whole(kept), whole(again)).Verdicts
	if !verdicts[0].Stale || verdicts[1].Taken != 4 || verdicts[2].Taken != 4 || verdicts[3].Taken != 4 {
		t.Errorf("verdicts %+v", verdicts)
	}
	b.wantState(run, "completed", 1)
	b.check()
}

func TestEndOfASessionHandsBackAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.load(request(), 12)
	claimed := b.claim(run, plenty)
	b.send(claimed[0])
	n, err := settle.New(b.store).EndSession(t.Context(), b.session)
	if err != nil || n != 2 {
		t.Errorf("handed back %d slices, %v; want 2", n, err)
	}
	if n, err := settle.New(b.store).EndSession(t.Context(), b.session); err != nil || n != 0 {
		t.Errorf("the second end handed back %d, %v", n, err)
	}
	b.check()
	b.session = b.open()
	again := b.claim(run, plenty)
	if len(again) != 2 || again[0].Cause != workqueue.CauseHandBack || again[0].Failures != 0 {
		t.Errorf("claimed %d slices again: %s", len(again), b.dump(run))
	}
}

func TestLostStreamsAreIssuedAgainAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.lead()
	work := time.Now()
	observe := func(work, reply time.Time, epoch int64, advances bool) {
		t.Helper()
		current, advanced, err := streams.New(b.store).ObserveStreams(t.Context(), streams.Created{Work: work, Reply: reply})
		if err != nil || current.Epoch != epoch || advanced != advances {
			t.Errorf("epoch %d, advanced %v, %v; want %d, %v", current.Epoch, advanced, err, epoch, advances)
		}
	}
	observe(work, work, 1, true)
	observe(work, work, 1, false)
	run := b.load(request(), 12)
	claimed := b.claim(run, plenty)
	b.send(claimed[:2]...)
	observe(work, work.Add(time.Second), 2, true) // the reply stream alone was made anew
	n, err := settle.New(b.store).ReleaseLostStreams(t.Context(), lease)
	if err != nil || n != 2 {
		t.Errorf("released %d slices, %v; want the two that were sent", n, err)
	}
	b.check()
	for _, s := range b.claim(run, plenty) {
		if s.Cause != workqueue.CauseStreams || s.Failures != 0 {
			t.Errorf("issued again as %+v", s)
		}
		if _, err := settle.New(b.store).MarkSent(t.Context(),
			[]workqueue.Sent{{ID: s.ID, StreamSeq: 1, StreamsEpoch: 2}}); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := settle.New(b.store).ReleaseLostStreams(t.Context(), lease); err != nil || n != 0 {
		t.Errorf("released %d slices of the present epoch, %v", n, err)
	}
	if err := streams.New(b.store).AdvanceStreams(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if err := streams.New(b.store).AdvanceStreams(t.Context(), 2); err != nil { // another node that noticed the same
		t.Fatal(err)
	}
	observe(work, work.Add(time.Second), 3, false)
	if n, err := settle.New(b.store).ReleaseLostStreams(t.Context(), lease); err != nil || n != 2 {
		t.Errorf("released %d slices after the rewind, %v; want 2", n, err)
	}
	b.check()
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
				seen := streams.Created{Work: now, Reply: now, Stage: now, Flow: now.Add(time.Duration(epoch) * time.Second)}
				current, advanced, err := streams.New(b.store).ObserveStreams(t.Context(), seen)
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

func TestDeadlines(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.lead()
	run := b.load(request(), 16)
	claimed := b.claim(run, plenty)
	late, waiting, unsent, answered := claimed[0], claimed[1], claimed[2], claimed[3]
	b.send(late, waiting, answered)
	if overdue, err := settle.New(b.store).OverdueSlices(t.Context(), plenty); err != nil || len(overdue) != 0 {
		t.Errorf("overdue %v, %v before any deadline", overdue, err)
	}
	if n, err := settle.New(b.store).Expire(t.Context(), lease, ids(claimed...)); err != nil || n != 0 {
		t.Errorf("expired %d slices before their deadline, %v", n, err)
	}
	b.pass(ids(claimed...)...)
	b.record(whole(answered))
	overdue, err := settle.New(b.store).OverdueSlices(t.Context(), plenty)
	if err != nil || len(overdue) != 3 {
		t.Fatalf("overdue %v, %v; want 3", overdue, err)
	}
	for _, o := range overdue {
		if (o.ID == unsent.ID) != (o.StreamSeq == 0) || o.Endpoint != endpoint {
			t.Errorf("overdue %+v", o)
		}
	}
	if err := settle.New(b.store).Extend(t.Context(), lease, ids(waiting, answered)); err != nil {
		t.Fatal(err)
	}
	if n, err := settle.New(b.store).ReleaseUnsent(t.Context(), lease, ids(unsent)); err != nil || n != 1 {
		t.Errorf("released %d unsent slices, %v", n, err)
	}
	if n, err := settle.New(b.store).Expire(t.Context(), lease, ids(late, waiting, answered)); err != nil || n != 1 {
		t.Errorf("expired %d slices, %v; want only the late one", n, err)
	}
	b.check()
	b.wantTally(run, tally{live: 12, done: 4})
	failures := map[workqueue.Cause]int{}
	for _, s := range b.claim(run, plenty) {
		failures[s.Cause] = s.Failures
	}
	if len(failures) != 2 || failures[workqueue.CauseStreams] != 0 || failures[workqueue.CauseDeadline] != 1 {
		t.Errorf("failures by cause %v; a request that was never sent is not the items' fault", failures)
	}
}

// Items that are late in every attempt fail, each for itself, and the run completes by the sweep.
func TestItemsThatAreAlwaysLateFail(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.lead()
	run := b.load(request(), 4)
	slices := 0
	for {
		claimed := b.claim(run, plenty)
		if len(claimed) == 0 {
			break
		}
		slices += len(claimed)
		b.send(claimed...)
		b.pass(ids(claimed...)...)
		if n, err := settle.New(b.store).Expire(t.Context(), lease, ids(claimed...)); err != nil || n != len(claimed) {
			t.Fatalf("expired %d of %d, %v", n, len(claimed), err)
		}
		b.check()
	}
	if slices != 2+2+2*4 {
		t.Errorf("%d slices; want two tries, two halves, four single items twice", slices)
	}
	b.wantTally(run, tally{failed: 4})
	b.wantState(run, "completed", 1)
	b.wantCompletions(run, 1)
	if n := b.number(`SELECT count(*) FROM work_part WHERE error_code = 'deadline'`); n != 4 {
		t.Errorf("%d items failed by their deadline; want 4", n)
	}
}

// Leader work whose lease has passed to another changes nothing, also when the epoch moves in the middle of it.
func TestLeaderWorkIsFencedByTheEpoch(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old := b.lead()
	run := b.load(request(), 12)
	claimed := b.claim(run, plenty)
	b.send(claimed[0])
	b.pass(ids(claimed...)...)
	b.exec(`UPDATE leader SET expires_at = clock_timestamp()`)
	other := b.open()
	lease, err := session.New(b.store).Lead(t.Context(), other, leaseTTL)
	if err != nil || lease.Epoch != old.Epoch+1 {
		t.Fatalf("lease %+v, %v; want the next epoch", lease, err)
	}
	if _, err := session.New(b.store).Lead(t.Context(), b.session, leaseTTL); !errors.Is(err, workqueue.ErrNotLeader) {
		t.Errorf("a second leader: %v; want ErrNotLeader", err)
	}
	b.expire(b.session)
	ctx := t.Context()
	for name, work := range map[string]func(workqueue.Lease) error{
		"dead sessions": func(l workqueue.Lease) error {
			_, err := settle.New(b.store).ReleaseDeadSessions(ctx,
				l)
			return err
		},
		"lost streams": func(l workqueue.Lease) error {
			_, err := settle.New(b.store).ReleaseLostStreams(ctx,
				l)
			return err
		},
		"expire": func(l workqueue.Lease) error {
			_, err := settle.New(b.store).Expire(ctx, l, ids(claimed[0]))
			return err
		},
		"unsent": func(l workqueue.Lease) error {
			_, err := settle.New(b.store).ReleaseUnsent(ctx, l, ids(claimed[1]))
			return err
		},
		"extend": func(l workqueue.Lease) error { return settle.New(b.store).Extend(ctx, l, ids(claimed[0])) },
	} {
		if err := work(old); !errors.Is(err, workqueue.ErrNotLeader) {
			t.Errorf("%s under the old epoch: %v; want ErrNotLeader", name, err)
		}
	}
	b.wantTally(run, tally{live: 12})
	n := b.number(`SELECT count(*) FROM work_slice WHERE state IN ('claimed', 'sent') AND deadline <= clock_timestamp()`)
	if n != 3 {
		t.Errorf("%d slices are as they were; want 3", n)
	}
	if n, err := settle.New(b.store).Expire(ctx, lease, ids(claimed[0])); err != nil || n != 1 {
		t.Errorf("the new leader expired %d, %v", n, err)
	}
	b.check()
}

// A leader that stops in the middle of its work keeps nobody from taking over, and nothing of that work is committed
// afterwards; nor does its work keep itself from prolonging the lease.
func TestLeaseIsCheckedAtTheEndOfItsWork(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.lead()
	run := b.load(request(), 4)
	s := b.one(run)
	b.send(s)
	b.pass(s.ID)
	release := b.holdRows(`SELECT 1 FROM work_slice WHERE id = $1 FOR UPDATE`, s.ID)
	var wg sync.WaitGroup
	wg.Go(func() {
		if n, err := settle.New(b.store).Expire(t.Context(), lease, ids(s)); !errors.Is(err, workqueue.ErrNotLeader) {
			t.Errorf("expired %d, %v; want ErrNotLeader: another leads since the work began", n, err)
		}
	})
	b.until("the sweep waits for the slice", func() bool { return b.waiters() == 1 })
	if again, err := session.New(b.store).Lead(t.Context(), b.session, leaseTTL); err != nil || again != lease {
		t.Errorf("prolonged to %+v, %v; its own work is in the way", again, err)
	}
	b.exec(`UPDATE leader SET expires_at = clock_timestamp()`)
	next, err := session.New(b.store).Lead(t.Context(), b.open(), leaseTTL)
	if err != nil || next.Epoch != lease.Epoch+1 {
		t.Fatalf("lease %+v, %v; want the next epoch, at once", next, err)
	}
	release()
	wg.Wait()
	b.wantTally(run, tally{live: 4})
	if n, err := settle.New(b.store).Expire(t.Context(), next, ids(s)); err != nil || n != 1 {
		t.Errorf("the new leader expired %d, %v", n, err)
	}
	b.check()
}

// Between its last look at the lease and its commit, nobody takes it over from a leader: whatever it commits, it
// commits before the next epoch.
func TestLeaseIsHeldThroughTheCommit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.lead()
	release := b.holdRows(`SELECT 1 FROM leader WHERE epoch = $1 FOR KEY SHARE`, lease.Epoch) // as the last look does
	if again, err := session.New(b.store).Lead(t.Context(), b.session, leaseTTL); err != nil || again != lease {
		t.Errorf("prolonged to %+v, %v", again, err)
	}
	b.exec(`UPDATE leader SET expires_at = clock_timestamp()`)
	var wg sync.WaitGroup
	wg.Go(func() {
		if next, err := session.New(b.store).Lead(t.Context(), b.open(), leaseTTL); err != nil ||
			next.Epoch != lease.Epoch+1 {
			t.Errorf("lease %+v, %v", next, err)
		}
	})
	b.until("the taker waits for the commit", func() bool { return b.waiters() == 1 })
	release()
	wg.Wait()
}

func TestSplitKeepsEveryItem(t *testing.T) {
	t.Parallel()
	b := setup(t)
	run := b.load(chunked(10), 10)
	s := b.one(run)
	first, err := settle.New(b.store).Split(t.Context(), b.session, s.ID, s.Mask.Split(3), time.Minute)
	if err != nil || first == nil {
		t.Fatalf("split off %+v, %v", first, err)
	}
	b.check()
	again, err := settle.New(b.store).Split(t.Context(), b.session, s.ID, s.Mask.Split(3), time.Minute)
	if err != nil || again != nil {
		t.Errorf("the second split made %+v, %v", again, err)
	}
	pieces := append(b.claim(run, plenty), *first)
	if len(pieces) != 4 || b.disjoint(pieces) != 10 {
		t.Fatalf("%d pieces", len(pieces))
	}
	if v := b.record(whole(s)).Verdicts[0]; !v.Stale {
		t.Errorf("a reply to the split slice: %+v", v)
	}
	b.send(pieces...)
	for _, p := range pieces {
		if p.Attempt != 1 || p.Failures != 0 || p.Cause != workqueue.CauseSplit {
			t.Errorf("piece %+v", p)
		}
		b.record(whole(p))
	}
	b.wantState(run, "completed", 1)
	b.check()
}

// A request that is cut in pieces must not become more requests than an endpoint or a step may have.
func TestSplitKeepsToTheLimits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	budget := 1
	if _, err := pacestore.New(b.store).ChangeEndpoint(t.Context(), pacestore.EndpointChange{Endpoint: endpoint,
		MaxInFlight: &budget}, "ann"); err != nil {
		t.Fatal(err)
	}
	run := b.load(chunked(10), 10)
	for s := b.one(run); ; s = b.one(run) {
		if s.Mask.Count() > 3 {
			first, err := settle.New(b.store).Split(t.Context(), b.session, s.ID, s.Mask.Split(3), time.Minute)
			if err != nil || first == nil {
				t.Fatalf("split off %+v, %v", first, err)
			}
			s = *first
		}
		out := b.number(`SELECT count(*) FROM work_slice WHERE state IN ('claimed', 'sent')`)
		if more := b.claim(run, plenty); out != budget || len(more) != 0 {
			t.Fatalf("%d requests are out and %d were claimed; the budget is %d", out, len(more), budget)
		}
		if len(b.record(whole(s)).Completed) > 0 {
			break
		}
	}
	b.check()
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
			run := b.load(request(), 8)
			s := b.one(run)
			if _, err := settle.New(b.store).Split(t.Context(), b.session, s.ID, masks, time.Minute); err == nil {
				t.Error("it was split")
			}
			b.check()
			b.wantTally(run, tally{ready: 4, live: 4})
		})
	}
}
