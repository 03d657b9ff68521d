package schedule_test

import (
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/storetest"
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
	lease, err := session.New(b.Store).Lead(b.Context(), b.Open(), storetest.LeaseTTL)
	if err != nil {
		b.Fatal(err)
	}
	return lease
}

func takeAt(name string, due time.Time) schedule.Taking {
	next := due.Add(time.Hour)
	return schedule.Taking{Schedule: name, Version: 1, Was: due, LastDue: due, Next: &next,
		Fires: []schedule.NewFire{{Due: due, StartAt: due, State: schedule.FireWaiting}}}
}

// fires returns the states of the fires of schedule night, the newest first.
func (b *bench) fires() (states string) {
	b.Helper()
	fires, _, err := schedule.New(b.Store).Fires(b.Context(), schedule.FireFilter{Schedule: "night"})
	if err != nil {
		b.Fatal(err)
	}
	for _, f := range fires {
		states += string(f.State) + " "
	}
	return strings.TrimSpace(states)
}

func TestSchedulesHaveVersions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	before := time.Now()
	first := b.ApplySchedule("night", `{"cron":"0 * * * *","plan":"p"}`)
	if first.Version != 1 || first.Previous != 0 || first.NextDue == nil || !first.NextDue.After(before) {
		t.Errorf("applied %+v", first)
	}
	if again := b.ApplySchedule("night", `{"plan":"p","cron":"0 * * * *"}`); again.Unchanged || again.Version != 2 {
		t.Errorf("another text is %+v", again)
	}
	if again := b.ApplySchedule("night", `{"plan":"p","cron":"0 * * * *"}`); !again.Unchanged || again.Version != 2 {
		t.Errorf("the same is %+v", again)
	}
	due := b.fallDue("night")
	if kept := b.ApplySchedule("night", `{"plan":"q"}`); kept.NextDue == nil || !kept.NextDue.Equal(due) {
		t.Errorf("a due time that has come, and was not taken, became %+v", kept)
	}
	gone, err := schedule.New(b.Store).SetSchedule(t.Context(), "night", workqueue.DocumentDeleted, nil, "ann")
	if err != nil || gone.State != "deleted" {
		t.Errorf("deleted %+v, %v", gone, err)
	}
	if _, err := schedule.New(b.Store).Schedule(t.Context(), "night"); !errors.Is(err, workqueue.ErrNotFound) ||
		!strings.Contains(err.Error(), "was deleted") {
		t.Errorf("a deleted one: %v", err)
	}
	if _, err := schedule.New(b.Store).SetSchedule(t.Context(),
		"night", workqueue.DocumentPaused, nil, "ann"); !errors.Is(err, workqueue.ErrNotFound) {
		t.Errorf("pause of a deleted one: %v", err)
	}
	if back := b.ApplySchedule("night", `{"plan":"q"}`); back.Version != 4 || back.Previous != 0 || back.Unchanged {
		t.Errorf("applied after its deletion: %+v", back)
	}
	if n := b.Number(`SELECT count(*) FROM audit_log WHERE action LIKE 'schedule_%'`); n != 5 {
		t.Errorf("%d rows in the audit log", n)
	}
	list, next, err := schedule.New(b.Store).Schedules(t.Context(), "", 1)
	if err != nil || next != "" || len(list) != 1 || list[0].Plan != "q" || list[0].Version != 4 {
		t.Errorf("the list is %+v, %v, %v", list, next, err)
	}
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
			ok, err := schedule.New(b.Store).TakeFires(t.Context(), by, takeAt("night", due))
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
	if taken.Load() != 1 || b.fires() != "due" {
		t.Errorf("taken %d times: %s", taken.Load(), b.fires())
	}
	// As if it had been set back: the fire's key keeps it from firing again.
	b.Exec(`UPDATE schedule SET next_due = $1 WHERE name = 'night'`, due)
	if ok, err := schedule.New(b.Store).TakeFires(t.Context(), lease, takeAt("night", due)); err != nil || !ok {
		t.Errorf("taken again: %v, %v", ok, err)
	}
	if b.fires() != "due" {
		t.Errorf("a due time that fired before: %s", b.fires())
	}
}

// A leader that has begun to start a run, and was stopped, starts none once another has taken the fire up.
func TestTheStartOfARunIsFenced(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.ApplySchedule("night", `{}`)
	due := b.fallDue("night")
	old := b.Lead()
	if ok, err := schedule.New(b.Store).TakeFires(t.Context(), old, takeAt("night", due)); err != nil || !ok {
		t.Fatal(ok, err)
	}
	key := schedule.FireKey{Schedule: "night", Due: due, Kind: schedule.FireDue}
	stopped, ok, err := schedule.New(b.Store).BeginFire(t.Context(), old, key)
	if err != nil || !ok || stopped.Attempt != 1 {
		t.Fatalf("%+v, %v, %v", stopped, ok, err)
	}
	waits, err := schedule.New(b.Store).WaitingFires(t.Context(), 10)
	if err != nil || len(waits) != 1 || waits[0].State != schedule.FireStarting {
		t.Fatalf("waiting are %+v, %v", waits, err)
	}
	load := func(claim schedule.FireClaim, items int) (start.Loaded, error) {
		req := storetest.Request()
		req.Session = b.Session
		schedule.OfFire(&req, claim)
		return start.New(b.Store).Load(t.Context(), req, storetest.Keys(storetest.Names(items)...))
	}
	lease := b.succeed()
	claim, ok, err := schedule.New(b.Store).BeginFire(t.Context(), lease, key)
	if err != nil || !ok || claim.Attempt != 2 {
		t.Fatalf("the second leader: %+v, %v, %v", claim, ok, err)
	}
	if loaded, err := load(stopped, 3); err == nil {
		t.Errorf("the leader that was has started %+v", loaded)
	}
	if ok, err := schedule.New(b.Store).EndFire(t.Context(), stopped,
		schedule.FireEnd{State: schedule.FireFailed}); err == nil || ok {
		t.Errorf("the leader that was has ended the fire: %v, %v", ok, err)
	}
	mine := stopped
	mine.Lease = lease // an attempt before, of the same leader
	if loaded, err := load(mine, 9000); err == nil {
		t.Errorf("an attempt that was given up has started %+v", loaded)
	}
	if n := b.Number(`SELECT count(*) FROM batchrun`); n != 0 {
		t.Errorf("%d runs are left of starts that were fenced off", n)
	}
	loaded, err := load(claim, 3)
	if err != nil {
		t.Fatal(err)
	}
	fires, _, err := schedule.New(b.Store).Fires(t.Context(), schedule.FireFilter{Schedule: "night"})
	if err != nil || len(fires) != 1 || fires[0].State != schedule.FireStarted || *fires[0].Run != loaded.Run ||
		fires[0].RunState != "running" {
		t.Errorf("fires are %+v, %v", fires, err)
	}
	if again, err := load(claim, 3); err != nil || !again.Existing || again.Run != loaded.Run {
		t.Errorf("the same start again: %+v, %v", again, err)
	}
	if _, ok, err := schedule.New(b.Store).BeginFire(t.Context(), lease, key); err != nil || ok {
		t.Errorf("a fire that has its run is begun again: %v, %v", ok, err)
	}
}

func TestPauseResumeAndRunNow(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.Lead()
	b.ApplySchedule("night", `{}`)
	due := b.fallDue("night")
	if paused, err := schedule.New(b.Store).SetSchedule(t.Context(),
		"night", workqueue.DocumentPaused, nil, "ann"); err != nil ||
		paused.State != "paused" {
		t.Fatal(paused, err)
	}
	if ok, err := schedule.New(b.Store).TakeFires(t.Context(), lease, takeAt("night", due)); err != nil || ok {
		t.Errorf("a paused schedule was taken: %v, %v", ok, err)
	}
	now, err := schedule.New(b.Store).RunScheduleNow(t.Context(), "night", "ann")
	if err != nil || now.Kind != schedule.FireNow || now.AskedBy != "ann" {
		t.Fatal(now, err)
	}
	waits, err := schedule.New(b.Store).WaitingFires(t.Context(), 10)
	if err != nil || len(waits) != 1 || waits[0].Kind != schedule.FireNow {
		t.Fatalf("waiting are %+v, %v", waits, err)
	}
	claim, ok, err := schedule.New(b.Store).BeginFire(t.Context(), lease, waits[0].FireKey)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	end := schedule.FireEnd{State: schedule.FireFailed, Reason: "no file"}
	if ok, err := schedule.New(b.Store).EndFire(t.Context(), claim, end); err != nil || !ok {
		t.Fatal(ok, err)
	}
	before := time.Now()
	resumed, err := schedule.New(b.Store).SetSchedule(t.Context(),
		"night", workqueue.DocumentActive, storetest.Hourly, "ann")
	if err != nil || resumed.NextDue == nil || !resumed.NextDue.After(before) {
		t.Errorf("resumed %+v, %v: what was due meanwhile is left out", resumed, err)
	}
	if again, err := schedule.New(b.Store).SetSchedule(t.Context(),
		"night", workqueue.DocumentActive, storetest.Hourly, "ann"); err != nil ||
		!again.Unchanged {
		t.Errorf("resumed again: %+v, %v", again, err)
	}
	if b.fires() != "failed" {
		t.Errorf("fires are %s", b.fires())
	}
	const told = `SELECT count(*) FROM run_event WHERE kind = 'schedule.failed' AND payload->>'reason' = 'no file'`
	if n := b.Number(told); n != 1 {
		t.Errorf("%d events tell of the failure", n)
	}
	if _, err := schedule.New(b.Store).RunScheduleNow(t.Context(), "nope", "ann"); !errors.Is(err, workqueue.ErrNotFound) {
		t.Errorf("of none: %v", err)
	}
	b.Exec(`UPDATE schedule SET next_due = tranche_now() + interval '1 hour'`)
	if wait, ok, err := schedule.New(b.Store).NextScheduleTime(t.Context()); err != nil || !ok || wait <= 0 ||
		wait > time.Hour {
		t.Errorf("the next time is in %s, %v, %v", wait, ok, err)
	}
}

// A run that has not ended in time is told of once; one that has is not.
func TestLateRunsAreToldOfOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.Lead()
	start := func(name string) schedule.FireKey {
		b.ApplySchedule(name, `{}`)
		due := b.fallDue(name)
		take := takeAt(name, due)
		by := due.Add(time.Second)
		take.Fires[0].EndDeadline = &by
		if ok, err := schedule.New(b.Store).TakeFires(t.Context(), lease, take); err != nil || !ok {
			t.Fatal(ok, err)
		}
		key := schedule.FireKey{Schedule: name, Due: due, Kind: schedule.FireDue}
		claim, ok, err := schedule.New(b.Store).BeginFire(t.Context(), lease, key)
		if err != nil || !ok {
			t.Fatal(ok, err)
		}
		req := storetest.Request()
		req.Session = b.Session
		schedule.OfFire(&req, claim)
		if _, err := start.New(b.Store).Load(t.Context(), req, storetest.Keys(storetest.Names(2)...)); err != nil {
			t.Fatal(err)
		}
		return key
	}
	slow, quick := start("slow"), start("quick")
	// They may have started sooner.
	b.Exec(`UPDATE schedule_occurrence SET end_deadline = tranche_now() - interval '1 second'`)
	b.Exec(`UPDATE batchrun SET state = 'cancelled',
			finished_at = (SELECT end_deadline FROM schedule_occurrence WHERE schedule = $1)
		WHERE idempotency_key = $2`, quick.Schedule, quick.RunKey())
	late, err := schedule.New(b.Store).LateFires(t.Context(), lease, 10)
	if err != nil || len(late) != 1 || late[0].Schedule != "slow" {
		t.Fatalf("late are %+v, %v", late, err)
	}
	for _, want := range []bool{true, false} {
		if ok, err := schedule.New(b.Store).NoteLate(t.Context(), lease, slow, "reported"); err != nil || ok != want {
			t.Errorf("noted %v, %v; want %v", ok, err, want)
		}
	}
	if late, err = schedule.New(b.Store).LateFires(t.Context(), lease, 10); err != nil || len(late) != 0 {
		t.Errorf("still late: %+v, %v", late, err)
	}
	if n := b.Number(`SELECT count(*) FROM run_event WHERE kind = 'schedule.late'`); n != 1 {
		t.Errorf("%d events", n)
	}
}
