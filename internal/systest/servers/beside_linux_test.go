package servers

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield/tracker"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/orchestrator/schedule"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/collector"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/database"
	schedulestore "github.com/tranchehq/tranche/workqueue/schedule"
	"github.com/tranchehq/tranche/workqueue/start"
)

// planner starts runs of schedules on its node, of as many items as a chunk.
type planner struct {
	*orchestrator.Node
	past  *past
	store *database.DB
}

func (p *planner) task() orchestrator.LeaderTask {
	p.past.Helper()
	task := testenv.Must(schedule.New(p.store, p, p, schedule.Config{}))(p.past)
	p.past.Cleanup(task.Wait)
	return task.LeaderTask()
}

// StartOccurrence implements schedule.Starter.
func (p *planner) StartOccurrence(ctx context.Context, job schedule.Job) (schedule.Started, error) {
	req := request(job.Spec.Name)
	req.Session = job.Claim.Lease.Session
	schedulestore.OfOccurrence(&req, job.Claim)
	loaded, err := p.Runs().Start(ctx, req, keyed(job.Spec.Name, 0, chunk))
	return schedule.Started{Run: loaded.Run, Items: loaded.Items, Existing: loaded.Existing}, err
}

// Permanent implements schedule.Starter.
func (*planner) Permanent(error) bool { return false }

// Pause and Cancel implement schedule.Runs.
func (p *planner) Pause(ctx context.Context, c control.Control) (control.Controlled, error) {
	return p.Runs().Pause(ctx, c)
}

func (p *planner) Cancel(ctx context.Context, c control.Control) (control.Cancelled, error) {
	return p.Runs().Cancel(ctx, c)
}

// caller does what programs do beside starting runs, and holds what it was answered.
type caller struct {
	*past
	url   string // of the database of now
	store *database.DB
	run   workqueue.RunID
	batch uuid.UUID
	due   time.Time
}

func (c *caller) at(url string) *caller {
	now := *c
	now.url, now.store = url, database.New(testenv.Connect(c, url))
	return &now
}

func (c *caller) must(err error) {
	c.Helper()
	testenv.NoError(c, err)
}

// add adds a part of the run's items, under a key.
func (c *caller) add(key string, first int) start.Added {
	c.Helper()
	added, err := start.New(c.store).Add(c.Context(), start.AddRequest{Run: c.run, Key: key, Digest: []byte(key),
		Actor: "ann",
		Items: func() (func(*start.LoadItem) error, error) { return keyed("open", first, first+2*chunk), nil }})
	c.must(err)
	return added
}

func (c *caller) seal() error {
	all := int64(4 * chunk)
	_, err := start.New(c.store).SealRun(c.Context(), start.SealRequest{Run: c.run, Expect: &all, Actor: "ann"})
	return err
}

func (c *caller) addToTracker(n int64, key string) (added tracker.Added) {
	c.Helper()
	c.must(c.store.InTx(c.Context(), func(ctx context.Context, tx pgx.Tx) (err error) {
		added, err = tracker.AddItems(ctx, tx, c.batch, n, key)
		return err
	}))
	return added
}

func (c *caller) sealTracker() (completed bool) {
	c.Helper()
	c.must(c.store.InTx(c.Context(), func(ctx context.Context, tx pgx.Tx) (err error) {
		completed, err = tracker.SealTracker(ctx, tx, c.batch)
		return err
	}))
	return completed
}

func (c *caller) ack(groups ...int) error {
	var acks []tracker.ItemsAck
	for _, g := range groups {
		acks = append(acks, tracker.ItemsAck{Batch: c.batch, Whole: []tracker.Span{{First: g, Last: g}}})
	}
	return c.store.InTx(c.Context(), func(ctx context.Context, tx pgx.Tx) error {
		_, err := tracker.AckItems(ctx, tx, acks)
		return err
	})
}

// collect adds an operation to the collector, and reports whether it was new.
func (c *caller) collect(id string) bool {
	c.Helper()
	out, _, err := collector.New(c.store).AddOps(c.Context(), "statement", 0, [][]collector.Op{{{ID: id, Key: "k",
		Payload: []byte(`{"id":"` + id + `"}`)}}})
	c.must(err)
	return out[0].Added == 1
}

func (c *caller) flushed(times int) {
	c.Helper()
	c.until("the operations are flushed", func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return c.executed["op1"] >= times && c.executed["op2"] >= times
	})
	c.until("the operations are done", func() bool { return c.number(c.url, `SELECT count(*) FROM collector_op`) == 0 })
}

// fall lets the schedule's due time come.
func (c *caller) fall() (run string) {
	c.Helper()
	_, err := testenv.Connect(c, c.url).Exec(c.Context(), `UPDATE schedule SET next_due = $1`, c.due)
	c.must(err)
	const started = `SELECT count(*) FROM schedule_occurrence f JOIN batchrun r ON r.id = f.run_id
		WHERE f.due_at = $1 AND f.state = 'started' AND r.state = 'completed' AND r.done = r.items`
	c.until("the schedule's run is done", func() bool { return c.number(c.url, started, c.due) == 1 })
	const its = `SELECT run_id::text FROM schedule_occurrence WHERE due_at = $1`
	c.must(testenv.Connect(c, c.url).QueryRow(c.Context(), its, c.due).Scan(&run))
	return run
}

// begin does what is there before the database begins to lose what it is told.
func (c *caller) begin() {
	c.Helper()
	opened, err := start.New(c.store).OpenRun(c.Context(), start.OpenRequest{LoadRequest: request("open")})
	c.must(err)
	c.run = opened.Run
	c.add("a1", 0)
	c.must(c.store.InTx(c.Context(), func(ctx context.Context, tx pgx.Tx) error {
		opened, err := tracker.OpenTracker(ctx, tx, tracker.OpenRequest{Owner: "ann", Key: "k"})
		c.batch = opened.ID
		return err
	}))
	c.addToTracker(10, "t1")
	spec := collector.CollectorSpec{Endpoint: "statement", MinSize: 2, MaxAge: collector.Span(time.Hour),
		Dedupe: collector.DefaultDedupe}
	_, err = collector.New(c.store).ApplyCollector(c.Context(),
		collector.Text{Name: "statement", Spec: spec.WithDefaults(), Source: "statement"}, "ann")
	c.must(err)
	c.collect("op1")                                                              // which waits for another one
	const source = "endpoint: e\nitems: {file: f.csv}\nevery: 1h\nmisfire: all\n" // all: also when an hour ends meanwhile
	plan, err := schedule.Parse("hourly", []byte(source))
	c.must(err)
	text, err := json.Marshal(plan)
	c.must(err)
	applied, err := schedulestore.New(c.store).ApplySchedule(c.Context(), schedulestore.Text{
		Document: workqueue.Document{Name: "hourly", Spec: text, Source: source},
		Zone:     plan.Zone, Next: func(_ json.RawMessage, after time.Time) (*time.Time, error) {
			due, _ := plan.Next(after)
			return &due, nil
		}}, "ann")
	c.must(err)
	c.due = applied.NextDue.Add(-time.Hour)
}

// An open run, a tracker, a collector and a schedule, on a database of which a standby lacks the last. Each says what
// it has, so that who was confirmed more does that again, under the same keys; and then it ends as it had ended before.
func TestWhatIsBesideRunsGoesOn(t *testing.T) {
	t.Parallel()
	primary := testenv.Postgres(t)
	standby, replication := primary.Standby(t, false)
	front := testenv.NewProxy(t, primary.Target(t))
	w := setupPast(t, at(front.Addr()))
	w.plans = true
	w.start()
	c := (&caller{past: w}).at(primary.URL())
	c.begin()
	w.until("the standby has all of it", func() bool {
		return w.number(standby.URL(), `SELECT count(*) FROM schedule`) == 1 && w.number(standby.URL(), beatNow) > 0
	})
	replication.Cut()
	beat := w.number(standby.URL(), beatNow)

	second, group := c.add("a2", 2*chunk), c.addToTracker(5, "t2")
	c.must(c.seal())
	c.must(c.ack(0, group.FirstGroup))
	if !c.sealTracker() {
		t.Fatal("the seal did not complete the tracker")
	}
	c.collect("op2")
	c.flushed(1)
	first := c.fall()
	const told = `SELECT count(*) FROM run_event WHERE run_id = $1 AND published_at IS NOT NULL AND kind = $2`
	w.until("both completions are reported", func() bool {
		return w.number(c.url, told, c.run, "completed") == 1 && w.number(c.url, told, c.batch, "tracker.completed") == 1
	})
	w.until("time has passed", func() bool { return w.number(c.url, beatNow) >= beat+4 })
	primary.Kill(t)
	standby.Promote(t)
	front.Turn(standby.Target(t))
	c = c.at(standby.URL())
	w.until("the loss is noticed", func() bool {
		return w.number(c.url, `SELECT count(*) FROM database_rewind WHERE lost`) == 1
	})

	c.wantLess()
	testenv.Same(t, c.add("a2", 2*chunk), second, "the answer to the add")
	testenv.Same(t, c.addToTracker(5, "t2"), group, "the answer to the tracker's add")
	c.must(c.seal())
	w.wantSound(c.url, "open", c.run, 4*chunk)
	c.must(c.ack(0, group.FirstGroup))
	if !c.sealTracker() {
		t.Error("the seal did not complete the tracker again")
	}
	c.flushed(2)
	if again := c.fall(); again == first {
		t.Errorf("the schedule's run is %s, which is lost", again)
	}
	w.until("both completions are reported again", func() bool {
		return w.number(c.url, told, c.run, "completed") == 1 && w.number(c.url, told, c.batch, "tracker.completed") == 1
	})
	for kind, of := range map[string]interface{ String() string }{"run": c.run, "tracker": c.batch} {
		testenv.Same(t, len(w.completions(kind, of)), 1, "the completion of the %s was told under the ids", kind)
	}
	w.wantInvariants(c.url)
}

// wantLess checks that each of them knows that it has less than was confirmed, and says so.
func (c *caller) wantLess() {
	c.Helper()
	testenv.Says(c, c.seal(), control.Grouped(2*chunk)+" items, and "+control.Grouped(4*chunk)+
		" were expected; it stays open", "the seal of what is not all there")
	if a := c.add("a1", 0); !a.Existing || a.First != 0 || a.Total != 2*chunk {
		c.Errorf("the add that is there is answered by %+v", a)
	}
	const rewound = `SELECT count(*) FROM run_event WHERE run_id = $1 AND kind = 'rewound'`
	testenv.Same(c, c.number(c.url, rewound, c.run), 1, "gaps that the run's history reports")
	var group *tracker.GroupError
	if err := c.ack(0, 1); !errors.As(err, &group) || group.Group != 1 || group.Groups != 1 {
		c.Errorf("an ack of items that are lost: %v", err)
	}
	if a := c.addToTracker(10, "t1"); !a.Existing || a.FirstGroup != 0 {
		c.Errorf("the tracker's add that is there is answered by %+v", a)
	}
	info, err := tracker.Get(c.Context(), c.store.Pool, c.batch)
	if err != nil || info.State != "open" || info.Items != 10 || info.Pending != 10 {
		c.Errorf("the tracker has %+v, %v", info, err)
	}
	if c.collect("op1") {
		c.Error("the operation that is there was taken twice")
	}
	if !c.collect("op2") {
		c.Error("the operation that is lost counts as known")
	}
}
