package schedule_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"go.uber.org/zap/zaptest"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/schedule"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	store "github.com/tranchehq/tranche/workqueue/schedule"
	sessionstore "github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/start"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// world is a database whose clock the test sets, and what starts runs in it. Nodes' clocks are years
// away.
type world struct {
	*testing.T
	pool  *pgxpool.Pool
	store *database.DB
	starter
}

// starter starts runs as the API does, of three items, unless the test has something against it.
type starter struct {
	store  *database.DB
	before func(ctx context.Context, job schedule.Job) error // nil: nothing
	after  func()
	starts atomic.Int32
}

func newWorld(t *testing.T, now string) *world {
	t.Helper()
	pool := testenv.Pool(t)
	w := &world{T: t, pool: pool, store: database.New(pool)}
	w.starter.store = w.store
	w.set(now)
	if at, err := store.New(w.store).DatabaseTime(t.Context()); err != nil ||
		at.Sub(instant(t, now)).Abs() > time.Minute {
		t.Fatalf("the database's time is %s, %v: it was not set", at, err)
	}
	return w
}

// set puts the database's clock to a time, from which it continues.
func (w *world) set(now string) {
	w.Helper()
	testenv.SetClock(w, w.pool, instant(w.T, now))
}

// stop has the database's clock stand at a time until it is set again.
func (w *world) stop(now string) {
	w.Helper()
	testenv.StopClock(w, w.pool, instant(w.T, now))
}

func instant(t testing.TB, text string) time.Time {
	t.Helper()
	if len(text) == len("08:00:00") { // of the tests' day
		text = "2031-05-05T" + text + "Z"
	}
	return testenv.Must(time.Parse(time.RFC3339, text))(t)
}

func (w *world) exec(sql string, args ...any) {
	w.Helper()
	testenv.Must(w.pool.Exec(w.Context(), sql, args...))(w)
}

func next(text json.RawMessage, after time.Time) (*time.Time, error) {
	spec := &schedule.Spec{}
	err := json.Unmarshal(text, spec)
	if due, ok := spec.Next(after); ok {
		return &due, err
	}
	return nil, err
}

// apply saves a schedule, of which only the lines that matter are given.
func (w *world) apply(name, lines string) {
	w.Helper()
	source := "endpoint: e\nitems: {file: f.csv}\n" + lines
	spec := testenv.Must(schedule.Parse(name, []byte(source)))(w)
	text := testenv.Must(json.Marshal(spec))(w)
	applied, err := store.New(w.store).ApplySchedule(w.Context(), store.Text{
		Document: workqueue.Document{Name: name, Spec: text, Source: source}, Zone: spec.Zone, Next: next,
	}, "ann")
	if err != nil || applied.NextDue == nil {
		w.Fatalf("apply: %+v, %v", applied, err)
	}
}

// leader is a node that leads, or thinks so.
type leader struct {
	*world
	task  *schedule.LeaderTask
	lease workqueue.Lease
	woken atomic.Int32
	// cancels is called before a run is cancelled, and after it; nil: it is not.
	cancels func(after bool)
}

// Pause implements schedule.Runs.
func (l *leader) Pause(ctx context.Context, c control.Control) (control.Controlled, error) {
	return control.New(l.store).Pause(ctx, c)
}

// Cancel implements schedule.Runs.
func (l *leader) Cancel(ctx context.Context, c control.Control) (control.Cancelled, error) {
	if l.cancels != nil {
		l.cancels(false)
		defer l.cancels(true)
	}
	return control.New(l.store).Cancel(ctx, c)
}

// WakeLeaderTask implements schedule.Runs.
func (l *leader) WakeLeaderTask(string) { l.woken.Add(1) }

// StartOccurrence implements schedule.Starter.
func (s *starter) StartOccurrence(ctx context.Context, job schedule.Job) (schedule.Started, error) {
	s.starts.Add(1)
	if s.before != nil {
		if err := s.before(ctx, job); err != nil {
			return schedule.Started{}, err
		}
	}
	req := start.LoadRequest{Name: job.Spec.Name, Plan: "test", CreatedBy: "test", Session: job.Claim.Lease.Session,
		Steps: []workqueue.StepSpec{{
			Name: "only", Endpoint: "e", StepSettings: workqueue.StepSettings{Chunk: 4, InFlight: 1, MaxAttempts: 1,
				Timeout: time.Minute},
		}}}
	store.OfOccurrence(&req, job.Claim)
	loaded, err := start.New(s.store).Load(ctx, req, storetest.Keys("C0", "C1", "C2"))
	if err == nil && s.after != nil {
		s.after()
	}
	return schedule.Started{Run: loaded.Run, Items: loaded.Items, Existing: loaded.Existing}, err
}

var errWrongItems = errors.New("the items are wrong")

// Permanent implements schedule.Starter.
func (*starter) Permanent(err error) bool { return errors.Is(err, errWrongItems) }

// lead makes a new node the leader, whoever leads.
func (w *world) lead() *leader {
	w.Helper()
	w.exec(`UPDATE leader SET expires_at = '-infinity'`)
	l := &leader{world: w}
	session, err := sessionstore.New(w.store).StartSession(w.Context(), sessionstore.NodeInfo{Host: "test", PID: 1,
		Version: "test"}, forEver)
	if err == nil {
		l.lease, err = sessionstore.New(w.store).Lead(w.Context(), session, forEver)
	}
	if err == nil {
		l.task, err = schedule.New(w.store, l, w, schedule.Config{Log: zaptest.NewLogger(w)})
	}
	testenv.NoError(w, err)
	w.Cleanup(l.task.Wait)
	return l
}

const forEver = 10_000 * time.Hour

// settle runs the leader task until nothing comes of it.
func (l *leader) settle() (again time.Duration) {
	l.Helper()
	for range 50 {
		again := testenv.Must(l.task.Run(l.Context(), l.lease))(l)
		l.task.Wait()
		if again >= 100*time.Millisecond {
			return again
		}
	}
	l.Fatal("the task does not come to rest")
	return 0
}

// at has the clock stand at some times, one after the other, and settles at each.
func (l *leader) at(times ...string) {
	l.Helper()
	for _, now := range times {
		l.stop(now)
		l.settle()
	}
}

// occurrences writes the outcome of due times, the oldest first: when, of what kind but due, state and reason.
func (w *world) occurrences(name string) string {
	w.Helper()
	list, err := store.New(w.store).Occurrences(w.Context(), store.OccurrenceFilter{Schedule: name})
	testenv.NoError(w, err)
	texts := make([]string, len(list.Occurrences))
	for i, f := range list.Occurrences {
		text := f.Due.UTC().Format("15:04 ") + string(f.State)
		if f.RunState != "" {
			text += "/" + f.RunState
		}
		if f.Kind == store.OccurrenceNow {
			text = string(f.State) + "/now"
		}
		texts[len(texts)-1-i] = text
	}
	return strings.Join(texts, ", ")
}

func (w *world) want(name, occurrences string) {
	w.Helper()
	testenv.Same(w, w.occurrences(name), occurrences, "%s", name)
}

func (w *world) last(name string) store.Occurrence {
	w.Helper()
	list, err := store.New(w.store).Occurrences(w.Context(), store.OccurrenceFilter{Schedule: name})
	if err != nil || len(list.Occurrences) == 0 {
		w.Fatalf("no occurrences, %v", err)
	}
	return list.Occurrences[0]
}

func (w *world) number(sql string) (n int) {
	w.Helper()
	testenv.NoError(w, w.pool.QueryRow(w.Context(), sql).Scan(&n))
	return n
}

func (w *world) runs() int { return w.number(`SELECT count(*) FROM batchrun`) }

func (w *world) end() {
	w.Helper()
	testenv.Must(control.New(w.store).Cancel(w.Context(), control.Control{All: true, Actor: "ann"}))(w)
}
