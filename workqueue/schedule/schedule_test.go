package schedule_test

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/schedule"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/start"
)

// fallDue makes a whole hour that has passed the next due time.
func (b *bench) fallDue(name string) time.Time {
	b.Helper()
	due := time.Now().UTC().Truncate(time.Hour).Add(-time.Hour) // past, also in the first seconds of an hour
	b.Exec(`UPDATE schedule SET next_due = $2 WHERE name = $1`, name, due)
	return due
}

// succeed makes another session the leader.
func (b *bench) succeed() workqueue.Lease {
	b.Helper()
	b.Exec(`UPDATE leader SET expires_at = tranche_now()`)
	return testenv.Must(session.New(b.Store).Lead(b.Context(), b.Open(), storetest.LeaseTTL))(b)
}

func takeAt(name string, due time.Time) schedule.Taking {
	next := due.Add(time.Hour)
	return schedule.Taking{Schedule: name, Version: 1, Was: due, LastDue: due, Next: &next,
		Occurrences: []schedule.NewOccurrence{{Due: due, StartAt: due, State: schedule.OccurrenceWaiting}}}
}

// occurrences returns the states of the occurrences of schedule night, the newest first.
func (b *bench) occurrences() (states string) {
	b.Helper()
	list, err := schedule.New(b.Store).Occurrences(b.Context(), schedule.OccurrenceFilter{Schedule: "night"})
	testenv.NoError(b, err)
	for _, f := range list.Occurrences {
		states += string(f.State) + " "
	}
	return strings.TrimSpace(states)
}

// However many leaders think they lead, and however often one tries, a due time is taken once.
func TestADueTimeIsTakenOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.ApplySchedule("night", `{}`)
	due := b.fallDue("night")
	old := b.Lead()
	lease := b.succeed()
	found, err := schedule.New(b.Store).DueSchedules(t.Context(), 10)
	if err != nil || len(found) != 1 || !found[0].NextDue.Equal(due) {
		t.Fatalf("due are %+v, %v", found, err)
	}
	var taken atomic.Int32
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			by := lease
			if i%2 == 0 {
				by = old
			}
			ok, err := schedule.New(b.Store).TakeOccurrences(t.Context(), by, takeAt("night", due))
			switch {
			case by == old && !errors.Is(err, workqueue.ErrNotLeader):
				t.Errorf("a leader that was: %v, %v", ok, err)
			case by == lease && err != nil:
				t.Error(err)
			case ok:
				taken.Add(1)
			}
		})
	}
	all.Wait()
	if taken.Load() != 1 || b.occurrences() != "due" {
		t.Errorf("taken %d times: %s", taken.Load(), b.occurrences())
	}
	// As if it had been set back: the occurrence's key keeps it from firing again.
	b.Exec(`UPDATE schedule SET next_due = $1 WHERE name = 'night'`, due)
	if ok, err := schedule.New(b.Store).TakeOccurrences(t.Context(), lease, takeAt("night", due)); err != nil || !ok {
		t.Errorf("taken again: %v, %v", ok, err)
	}
	testenv.Same(t, b.occurrences(), "due", "a due time that fired before")
}

// A leader that has begun to start a run, and was stopped, starts none once another has taken the occurrence up.
func TestTheStartOfARunIsFenced(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.ApplySchedule("night", `{}`)
	due := b.fallDue("night")
	old := b.Lead()
	if ok, err := schedule.New(b.Store).TakeOccurrences(t.Context(), old, takeAt("night", due)); err != nil || !ok {
		t.Fatal(ok, err)
	}
	key := schedule.OccurrenceKey{Schedule: "night", Due: due, Kind: schedule.OccurrenceDue}
	stopped, ok, err := schedule.New(b.Store).BeginOccurrence(t.Context(), old, key, nil)
	if err != nil || !ok || stopped.Attempt != 1 {
		t.Fatalf("%+v, %v, %v", stopped, ok, err)
	}
	waits, err := schedule.New(b.Store).WaitingOccurrences(t.Context(), 10)
	if err != nil || len(waits) != 1 || waits[0].State != schedule.OccurrenceStarting {
		t.Fatalf("waiting are %+v, %v", waits, err)
	}
	load := func(claim schedule.OccurrenceClaim, items int) (start.Loaded, error) {
		req := storetest.Request()
		req.Session = b.Session
		schedule.OfOccurrence(&req, claim)
		return start.New(b.Store).Load(t.Context(), req, storetest.Keys(storetest.Names(items)...))
	}
	lease := b.succeed()
	claim, ok, err := schedule.New(b.Store).BeginOccurrence(t.Context(), lease, key, nil)
	if err != nil || !ok || claim.Attempt != 2 {
		t.Fatalf("the second leader: %+v, %v, %v", claim, ok, err)
	}
	_, err = load(stopped, 3)
	testenv.Fails(t, err, "the leader that was has started a run")
	if ok, err := schedule.New(b.Store).EndOccurrence(t.Context(), stopped,
		schedule.OccurrenceEnd{State: schedule.OccurrenceFailed}); err == nil || ok {
		t.Errorf("the former leader ended the occurrence: %v, %v", ok, err)
	}
	mine := stopped
	mine.Lease = lease // an attempt before, of the same leader
	_, err = load(mine, 9000)
	testenv.Fails(t, err, "an attempt that was abandoned has started a run")
	testenv.Same(t, b.Number(`SELECT count(*) FROM batchrun`), 0, "runs are left of starts that were fenced off")
	loaded := testenv.Must(load(claim, 3))(t)
	testenv.Same(t, b.Number(`SELECT count(*) FROM batchrun WHERE schedule = 'night'`), 1, "runs that name their schedule")
	list, err := schedule.New(b.Store).Occurrences(t.Context(), schedule.OccurrenceFilter{Schedule: "night"})
	if err != nil || len(list.Occurrences) != 1 || list.Occurrences[0].State != schedule.OccurrenceStarted ||
		*list.Occurrences[0].Run != loaded.Run || list.Occurrences[0].RunState != "running" {
		t.Errorf("occurrences are %+v, %v", list, err)
	}
	if again, err := load(claim, 3); err != nil || !again.Existing || again.Run != loaded.Run {
		t.Errorf("the same start again: %+v, %v", again, err)
	}
	if _, ok, err := schedule.New(b.Store).BeginOccurrence(t.Context(), lease, key, nil); err != nil || ok {
		t.Errorf("an occurrence that has its run is begun again: %v, %v", ok, err)
	}
}
