package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/schedule"
	"github.com/tranchehq/tranche/workqueue"
	store "github.com/tranchehq/tranche/workqueue/schedule"
)

const hourly = "cron: 0 * * * *\n"

func TestDueTimeStartsOneRun(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "08:59:00")
	w.apply("s", hourly+"run_name: x\n")
	l := w.lead()
	if again := l.settle(); again > 5*time.Second || w.occurrences("s") != "" {
		t.Fatalf("before its time: again in %s, %s", again, w.occurrences("s"))
	}
	l.at("09:00:00")
	l.settle()
	w.want("s", "09:00 started/running")
	if w.runs() != 1 || l.woken.Load() == 0 {
		t.Errorf("%d runs, woken %d times", w.runs(), l.woken.Load())
	}
	w.stop("09:59:58")
	if again := l.settle(); again > 2*time.Second {
		t.Errorf("two seconds before the next one it looks again in %s", again)
	}
	l.at("10:00:00")
	w.want("s", "09:00 started/running, 10:00 skipped")
	testenv.Has(t, w.last("s").Reason, "was in progress", "the reason")
}

// TestNoClockButTheDatabases has the database's clock an hour behind that of the node, and then an hour before it: what
// is due follows the database.
func TestNoClockButTheDatabases(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "08:00:00")
	l := w.lead()
	for name, off := range map[string]time.Duration{"behind": -time.Hour, "before": time.Hour} {
		due := time.Now().UTC().Add(off).Truncate(time.Minute).Add(2 * time.Minute)
		w.set(due.Add(-time.Minute).Format(time.RFC3339))
		w.apply(name, fmt.Sprintf("cron: %d %d * * *\n", due.Minute(), due.Hour()))
		l.settle()
		w.want(name, "")
		w.set(due.Format(time.RFC3339))
		l.settle()
		w.want(name, due.Format("15:04")+" started/running")
	}
}

func dieBeforeTheLoad(w *world, _ *leader, kill func()) {
	w.before = func(ctx context.Context, _ schedule.Job) error {
		kill()
		return ctx.Err()
	}
}

func dieAfterTheLoad(w *world, _ *leader, kill func()) { w.after = kill }

// TestStoppedLeaderComesBack stops a leader in the middle of a start for longer than its lease, has the next one start
// the run, and lets the first continue.
func TestStoppedLeaderComesBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "08:59:00")
	w.apply("s", hourly)
	first := w.lead()
	w.set("09:00:00")
	stopped, goOn := make(chan struct{}), make(chan struct{})
	w.before = func(_ context.Context, job schedule.Job) error {
		if job.Claim.Lease == first.lease {
			close(stopped)
			<-goOn
		}
		return nil
	}
	first.look()
	<-stopped
	w.lead().settle()
	w.want("s", "09:00 started/running")
	run := *w.last("s").Run
	close(goOn)
	first.task.Wait()
	w.want("s", "09:00 started/running")
	if f := w.last("s"); w.runs() != 1 || *f.Run != run || f.Attempts != 2 || w.starts.Load() != 2 {
		t.Errorf("%d runs, %d starts, %+v", w.runs(), w.starts.Load(), f)
	}
	_, err := first.task.Run(t.Context(), first.lease)
	testenv.Is(t, err, workqueue.ErrNotLeader, "the first leader still works")
}

func TestDowntime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "08:30:00")
	for name, lines := range map[string]string{
		"once": "", "none": "misfire: none\n", "all": "misfire: all\nmisfire_limit: 2\noverlap: queue\n",
	} {
		w.apply(name, hourly+lines)
	}
	w.before = func(_ context.Context, job schedule.Job) error {
		if job.Claim.Schedule == "all" && job.Claim.Due.UTC().Hour() == 10 && job.Claim.Attempt == 1 {
			return errors.New("not now")
		}
		return nil
	}
	w.stop("11:55:00")
	l := w.lead()
	l.settle()
	testenv.Must(store.New(w.store).RunScheduleNow(t.Context(), "all", "ann"))(t)
	l.settle()
	w.want("all", "09:00 missed, 10:00 queued, 11:00 queued, queued/now")
	l.at("11:55:06")
	w.want("once", "09:00 missed, 10:00 missed, 11:00 started/running")
	w.want("none", "09:00 missed, 10:00 missed, 11:00 missed")
	w.want("all", "09:00 missed, 10:00 started/running, 11:00 queued, queued/now")
	w.end()
	l.at("12:00:05")
	w.want("once", "09:00 missed, 10:00 missed, 11:00 started/cancelled, 12:00 started/running")
	w.want("none", "09:00 missed, 10:00 missed, 11:00 missed, 12:00 started/running")
	w.want("all", "09:00 missed, 10:00 started/cancelled, 11:00 started/running, queued/now, 12:00 queued")
	testenv.Same(t, w.number(`SELECT count(*) FROM run_event WHERE kind = 'schedule.missed'`), 6,
		"events for 6 due times that were missed")
}

func TestOverlap(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "08:30:00")
	w.apply("skip", hourly)
	w.apply("queue", hourly+"overlap: queue\n")
	w.apply("cancel", hourly+"overlap: cancel_old\n")
	w.apply("late", "cron: 0 9,10 * * *\noverlap: cancel_old\n")
	l := w.lead()
	w.before = func(_ context.Context, job schedule.Job) error { // its items of 9 come after those of 10
		if job.Claim.Schedule == "late" && !strings.Contains(w.occurrences("late"), "10:00 started") &&
			job.Claim.Due.UTC().Hour() == 9 {
			return errors.New("not now")
		}
		return nil
	}
	l.at("09:00:00", "10:00:00", "11:00:00")
	w.want("skip", "09:00 started/running, 10:00 skipped, 11:00 skipped")
	w.want("queue", "09:00 started/running, 10:00 queued, 11:00 queued")
	w.want("cancel", "09:00 started/cancelled, 10:00 started/cancelled, 11:00 started/running")
	w.want("late", "09:00 skipped, 10:00 started/running")
	w.end()
	l.settle()
	w.want("queue", "09:00 started/cancelled, 10:00 started/running, 11:00 queued")
	w.end()
	l.settle()
	w.want("queue", "09:00 started/cancelled, 10:00 started/cancelled, 11:00 started/running")
}

// TestOverlapWhileARunIsLoaded has the next due time come before the items of the run have.
func TestOverlapWhileARunIsLoaded(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "08:30:00")
	w.apply("skip", hourly)
	w.apply("queue", hourly+"overlap: queue\n")
	w.apply("cancel", hourly+"overlap: cancel_old\n")
	l := w.lead()
	loaded := make(chan struct{})
	w.before = func(ctx context.Context, _ schedule.Job) error {
		select {
		case <-loaded:
		case <-ctx.Done():
		}
		return nil
	}
	for _, now := range []string{"09:00:00", "10:00:00"} {
		w.set(now)
		l.look()
	}
	w.want("skip", "09:00 starting, 10:00 skipped")
	w.want("queue", "09:00 starting, 10:00 queued")
	w.want("cancel", "09:00 starting, 10:00 due")
	if f := w.last("cancel"); f.Reason != "the run of 2031-05-05T09:00:00Z is being started; it is cancelled for "+
		"this one when it has its items" {
		t.Errorf("it waits as %+v", f)
	}
	close(loaded)
	l.task.Wait()
	l.settle()
	w.want("skip", "09:00 started/running, 10:00 skipped")
	w.want("queue", "09:00 started/running, 10:00 queued")
	w.want("cancel", "09:00 started/cancelled, 10:00 started/running")
	testenv.Same(t, w.number(`SELECT count(*) FROM schedule_occurrence WHERE attempts > 1`), 0,
		"were started more than once")
}

func (w *world) become(name string, state string) {
	w.Helper()
	testenv.Must(store.New(w.store).SetSchedule(w.Context(), name, state, next, "ann"))(w)
}

func TestPaused(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "08:30:00")
	w.apply("s", hourly)
	w.apply("waits", hourly+"not_before: '22:00'\n")
	w.become("s", workqueue.DocumentPaused)
	l := w.lead()
	l.at("09:00:00")
	for state, want := range map[string]string{workqueue.DocumentPaused: "the schedule is paused",
		workqueue.DocumentActive: ""} {
		w.become("waits", state)
		if f := w.last("waits"); f.State != store.OccurrenceWaiting || f.Reason != want {
			t.Errorf("it waits as %+v; want %q", f, want)
		}
	}
	l.at("10:30:00")
	w.want("s", "")
	testenv.Must(store.New(w.store).RunScheduleNow(t.Context(), "s", "ann"))(t)
	l.settle()
	w.want("s", "started/now")
	w.end()
	w.become("s", workqueue.DocumentActive)
	l.settle()
	w.want("s", "started/now")
	l.at("11:00:00")
	w.want("s", "started/now, 11:00 started/running")
}

func TestWindowAndLate(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "20:30:00")
	const window = "cron: 0 21 * * *\nnot_before: '22:00'\ndone_by: '06:00'\non_late: "
	for _, policy := range []string{"report", "pause", "cancel"} {
		w.apply(policy, window+policy+"\n")
	}
	w.apply("longer", window+"cancel\n")
	l := w.lead()
	l.at("21:00:00")
	w.want("pause", "21:00 due")
	l.at("22:00:00")
	w.want("pause", "21:00 started/running")
	l.at("2031-05-06T05:59:00Z")
	testenv.MustSame(t, w.last("cancel").LateAction, "", "it is late before its time")
	const later = `UPDATE schedule_occurrence SET done_by = done_by + $2::interval WHERE schedule = $1`
	w.exec(later, "longer", "500 ms")
	l.cancels = func(bool) { w.exec(later, "longer", "2 h") }
	for range 2 {
		l.at("2031-05-06T06:00:01Z")
	}
	w.want("report", "21:00 started/running")
	w.want("cancel", "21:00 started/cancelled")
	w.want("longer", "21:00 started/running")
	for policy, want := range map[string]string{"report": "reported", "pause": "paused", "cancel": "cancelled"} {
		testenv.Same(t, w.last(policy).LateAction, want, "%s: late_action", policy)
	}
	held := w.number(`SELECT count(*) FROM batchrun WHERE hold IS NOT NULL`)
	events := w.number(`SELECT count(*) FROM run_event WHERE kind = 'schedule.late'`)
	if held != 1 || events != 3 {
		t.Errorf("%d runs are held, and %d events report 3 late runs", held, events)
	}
}

func TestStartsThatFail(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "08:30:00")
	w.apply("later", hourly+"start_attempts: 3\n")
	w.apply("wrong", hourly)
	w.apply("empty", hourly)
	w.apply("panic", hourly+"start_attempts: 1\n")
	w.apply("deadline", hourly+"start_deadline: 1m\nstart_attempts: 50\n")
	w.apply("cleared", hourly)
	l := w.lead()
	w.before = func(_ context.Context, job schedule.Job) error {
		switch job.Claim.Schedule {
		case "wrong":
			return errWrongItems
		case "empty":
			return &schedule.NoItemsError{Source: "file f.csv"}
		case "panic":
			panic("mutant")
		case "cleared":
			return &workqueue.StateError{State: "loading"}
		}
		return errors.New("the file does not exist yet")
	}
	l.at("09:00:00") // until all has been tried once
	w.want("wrong", "09:00 failed")
	w.want("empty", "09:00 skipped")
	w.want("panic", "09:00 failed")
	w.want("later", "09:00 due")
	testenv.Same(t, w.last("cleared").Attempts, 0, "attempts while an earlier one is cleared away")
	if f := w.last("later"); f.Reason != "attempt 1 of 3: the file does not exist yet" || f.Attempts != 1 {
		t.Errorf("it waits as %+v", f)
	}
	l.at("09:00:30") // 5 s later, and 10 s
	l.at("09:00:59")
	w.want("later", "09:00 failed")
	if f := w.last("later"); f.Reason != "attempt 3 of 3: the file does not exist yet" || f.Attempts != 3 {
		t.Errorf("it failed as %+v", f)
	}
	l.at("09:05:00")
	w.want("deadline", "09:00 missed")
	testenv.Has(t, w.last("deadline").Reason, "the file does not exist yet", "it was missed as")
	if w.runs() != 0 || w.number(`SELECT count(*) FROM run_event WHERE kind = 'schedule.failed'`) != 3 {
		t.Errorf("%d runs", w.runs())
	}
	w.before = nil
	l.at("10:00:00")
	w.want("wrong", "09:00 failed, 10:00 started/running")
}

// TestOneScheduleThatCannotBeRead keeps no other waiting, and is told.
func TestOneScheduleThatCannotBeRead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, "08:30:00")
	w.apply("a", hourly)
	w.apply("b", hourly)
	w.exec(`UPDATE schedule SET spec = jsonb_set(spec, '{zone}', '"Mars/Phobos"') WHERE name = 'a'`)
	l := w.lead()
	w.set("09:00:00")
	for range 3 {
		_, err := l.task.Run(t.Context(), l.lease)
		testenv.Says(t, err, "schedule a cannot be read by this version of tranche", "it")
		l.task.Wait()
	}
	w.want("a", "")
	w.want("b", "09:00 started/running")
}

// Who changes what a schedule's fields mean changes the examples, too.
func TestExamplesAreSchedules(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../examples/schedules/*.yaml")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d examples, %v", len(files), err)
	}
	now := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	for _, file := range files {
		text := testenv.Must(os.ReadFile(file))(t)
		spec := testenv.Must(schedule.Parse(file, text))(t)
		testenv.Same(t, spec.Name, strings.TrimSuffix(filepath.Base(file), ".yaml"), "%s is schedule", file)
		if due, ok := spec.Next(now); !ok || len(spec.Warnings(now)) > 0 {
			t.Errorf("%s is due %s, %v, with %v", file, due, ok, spec.Warnings(now))
		}
	}
}
