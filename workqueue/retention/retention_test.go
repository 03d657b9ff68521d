package retention_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/internal/testing/storetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/internal/pg"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/retention"
	"github.com/tranchehq/tranche/workqueue/schedule"
	"github.com/tranchehq/tranche/workqueue/session"
	"github.com/tranchehq/tranche/workqueue/start"
)

// wantGone wants nothing left of a run that someone has deleted, and of another what there was.
func (b *bench) wantGone(run workqueue.RunID, by string, other workqueue.RunID, before map[string]int) {
	b.Helper()
	left := b.inTables(run)
	delete(left, "audit_log")
	delete(left, "deleted_run")
	testenv.Same(b, len(left), 0, "tables that have rows: %v", left)
	testenv.Same(b, fmt.Sprint(b.inTables(other)), fmt.Sprint(before), "rows of the other run")
	if last := b.Actions(run); last[len(last)-1] != "delete by "+by {
		b.Errorf("actions: %v", last)
	}
	b.Check()
}

// inTables is what there is of a run, by table: in all that have a run_id, and in the tracker.
func (b *bench) inTables(run workqueue.RunID) map[string]int {
	b.Helper()
	columns, err := pg.Collect(b.Context(), b.Pool, pgx.RowTo[string],
		`SELECT table_name || '.' || column_name FROM information_schema.columns
		WHERE table_schema = 'public' AND (column_name = 'run_id' OR column_name = 'batch_id' OR
			(table_name, column_name) IN (('batchrun', 'id'), ('tracker_batch', 'id'))) ORDER BY 1`)
	if err != nil || len(columns) < 15 {
		b.Fatal(columns, err)
	}
	found := map[string]int{}
	for _, c := range columns {
		table, column, _ := strings.Cut(c, ".")
		if n := b.Number(`SELECT count(*) FROM `+table+` WHERE `+column+` = $1`, run); n > 0 {
			found[table] = n
		}
	}
	return found
}

func (b *bench) deleteRun(lease workqueue.Lease, run workqueue.RunID) bool {
	b.Helper()
	return testenv.Must(retention.New(b.Store).DeleteRun(b.Context(), lease, run, time.Now(), "age 1h", ""))(b)
}

// A run is gone for all immediately, and then in pieces, on any leader; what is of others stays, and every invariant
// holds all the while.
func TestADeletedRunIsGoneAtOnceAndThenInPieces(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.Lead()
	other, run := b.Ended(30, time.Hour), b.Ended(30, time.Hour)
	before, had := b.inTables(other), b.inTables(run)
	for _, id := range []workqueue.RunID{other, run} {
		b.Exec(`INSERT INTO health_ack (kind, subject, state, by, reason, severity, count)
			VALUES ('failed_items', '` + id.String() + `', 'acknowledged', 'ann', 'known', 'warning', 1)`)
	}
	for _, table := range []string{"work_result", "work_error", "work_slice", "quarantine", "dead_letter", "run_event"} {
		if had[table] == 0 {
			t.Errorf("the run has nothing in %s: %v", table, had)
		}
	}
	if !b.deleteRun(lease, run) {
		t.Fatal("it was not deleted")
	}
	testenv.Same(t, b.Number(`SELECT count(*) FROM health_ack`), 1, "marks left")
	testenv.Same(t, b.Number(`SELECT count(*) FROM health_ack WHERE subject = $1`, other.String()), 1, "of the other run")
	_, err := inspect.New(b.Store).Resolve(t.Context(), run.String())
	if gone, ok := errors.AsType[*inspect.GoneError](err); !ok || gone.Run.Run != run ||
		!errors.Is(err, workqueue.ErrNotFound) || !strings.Contains(err.Error(), "was deleted at") {
		t.Errorf("a deleted run is told as %v", err)
	}
	_, err = redo.New(b.Store).Rerun(t.Context(), redo.RerunRequest{Run: run, Actor: "ann",
		Select: redo.Selection{Failed: true}})
	testenv.Is(t, err, workqueue.ErrNotFound, "a rerun of a deleted run")
	b.Check()

	pieces := 0
	for gone := false; !gone; pieces++ {
		if pieces%10 == 5 { // the leader dies, another one continues
			b.Exec(`UPDATE leader SET expires_at = tranche_now()`)
			late := lease
			b.Session = b.Open()
			lease = b.Lead()
			now := b.inTables(run)
			_, _, err := retention.New(b.Store).DeletePiece(t.Context(), late, run, 7)
			testenv.Is(t, err, workqueue.ErrNotLeader, "the old leader")
			testenv.Same(t, fmt.Sprint(b.inTables(run)), fmt.Sprint(now), "rows after the old leader's attempt")
			b.Check()
		}
		_, gone, err = retention.New(b.Store).DeletePiece(t.Context(), lease, run, 7)
		testenv.NoError(t, err)
	}
	if pieces < 12 {
		t.Errorf("it went in %d pieces", pieces)
	}
	b.wantGone(run, "tranche", other, before)
}

// A rerun and a deletion that begin at the same time: one of them wins, and the other one has done nothing.
func TestARerunAndADeletionAtOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.Lead()
	for i := range 24 {
		run := b.Ended(9, time.Hour)
		var wg sync.WaitGroup
		var deleted bool
		var rerun, failed error
		delay := time.NewTimer(time.Duration(i%12) * 300 * time.Microsecond)
		wg.Go(func() {
			_, rerun = redo.New(b.Store).Rerun(t.Context(), redo.RerunRequest{Run: run, Actor: "ann",
				Select: redo.Selection{Keys: []string{"C1", "C2"}}})
		})
		wg.Go(func() {
			<-delay.C
			deleted, failed = retention.New(b.Store).DeleteRun(t.Context(), lease, run, time.Now(), "age 1h", "")
		})
		wg.Wait()
		switch {
		case failed != nil:
			t.Fatal(failed)
		case deleted && !errors.Is(rerun, workqueue.ErrNotFound):
			t.Fatalf("it was deleted, and the rerun said %v", rerun)
		case !deleted && rerun != nil:
			t.Fatalf("neither happened: %v", rerun)
		case !deleted:
			b.WantTally(run, storetest.Tally{Ready: 2, Done: 7})
		}
	}
	b.Check()
}

// Limits of age, number and size, of runs and of what else there is.
func TestRetentionLimits(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.Lead()
	ctx := t.Context()
	var runs []workqueue.RunID
	for i := range 4 {
		runs = append(runs, b.Ended(9, time.Duration(10-i)*time.Hour)) // the first is the oldest
	}
	b.Ended(9, 0)
	due := func(limits retention.Limits) int64 {
		t.Helper()
		testenv.Must(retention.New(b.Store).SetRetention(ctx, retention.RetainRuns, limits, "ann"))(t)
		all := testenv.Must(retention.New(b.Store).RetentionDue(ctx))(t)
		testenv.MustSame(t, all[0].Kind, retention.RetainRuns, "kind")
		return all[0].Count
	}
	testenv.Same(t, len(testenv.Must(retention.New(b.Store).MeasureRuns(ctx, lease, 100))(t)), 0,
		"runs are measured for no limit and no quota")
	b.Exec(`UPDATE namespace SET max_bytes = 1::bigint << 40`)
	if n, err := retention.New(b.Store).MeasureRuns(ctx, lease, 100); len(n) != 5 || err != nil {
		t.Fatal(n, err)
	}
	if n, err := retention.New(b.Store).MeasureRuns(ctx, lease, 100); len(n) != 0 || err != nil {
		t.Errorf("%d runs were measured twice: %v", len(n), err)
	}
	age, few, bytes := 8*time.Hour+30*time.Minute, int64(2), int64(1<<20)
	for want, limits := range map[int64]retention.Limits{
		0: {}, 2: {Age: &age}, 3: {Count: &few}, 4: {Count: &[]int64{1}[0], Age: &age},
	} {
		testenv.Same(t, due(limits), want, "%s: runs are due", limits.String())
	}
	testenv.Same(t, b.Number(`SELECT count(*) FROM retention_size WHERE bytes BETWEEN 5000 AND 50000`), 5,
		"runs of 9 items are of some kilobytes")
	// The newest large run is less than a mebibyte, both together are more.
	b.Exec(`UPDATE retention_size SET bytes = 700000 WHERE run_id = ANY($1)`, []workqueue.RunID{runs[1], runs[3]})
	testenv.Same(t, due(retention.Limits{Bytes: &bytes}), 2, "runs are past the size")
	before := testenv.Must(retention.New(b.Store).RetentionCutoff(ctx, &retention.Retention{Kind: retention.RetainRuns,
		Limits: retention.Limits{Count: &few}}))(t)
	testenv.SameList(t, testenv.Must(retention.New(b.Store).RunsPastLimits(ctx, *before, 10, runs[:1]))(t), runs[1:3],
		"runs past their limits")
	// The run that continues another goes first; what is past the limits with it is due, and no more than that.
	b.Exec(`UPDATE batchrun SET from_run = $1 WHERE id = $2`, runs[0], runs[1])
	testenv.SameList(t, testenv.Must(retention.New(b.Store).RunsPastLimits(ctx, *before, 10, nil))(t), runs[1:3],
		"runs that no run continues")
	if n := due(retention.Limits{Age: &age}); n != 2 || b.deleteRun(lease, runs[0]) {
		t.Errorf("%d runs are due; want both of a pair, the later one first", n)
	}
	b.Exec(`UPDATE batchrun SET from_run = $1 WHERE id = $2`, runs[1], runs[2])
	testenv.Same(t, due(retention.Limits{Age: &age}), 0, "runs are due")
	for _, wrong := range []retention.Limits{{Age: new(time.Duration)}, {Count: new(int64)}, {Bytes: &few}} {
		_, err := retention.New(b.Store).SetRetention(ctx, retention.RetainRuns, wrong, "ann")
		testenv.Fails(t, err, "%v was taken", wrong)
	}
	_, err := retention.New(b.Store).SetRetention(ctx, "cats", retention.Limits{}, "ann")
	testenv.Says(t, err, "quarantine", "a kind that there is none")
}

// The run that could not be measured is guessed, and no other, by its own items and steps alone; sizes of deleted runs
// are not in the way of measuring.
func TestTheSizeOfARunIsGuessed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.Lead()
	ctx := t.Context()
	deleted, first, huge := b.Ended(9, time.Hour), b.Ended(9, time.Hour), b.Ended(9, time.Hour)
	b.Exec(`UPDATE namespace SET max_bytes = 1::bigint << 40`)
	testenv.SameList(t, testenv.Must(retention.New(b.Store).MeasureRuns(ctx, lease, 1))(t), []workqueue.RunID{deleted},
		"runs measured")
	b.Exec(`UPDATE retention_size SET bytes = 1 << 30`)
	sizes := `SELECT count(*) FROM retention_size WHERE run_id = $1`
	b.Exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN RAISE 'the test breaks it off'; END $$`)
	b.Exec(`CREATE TRIGGER refuse BEFORE INSERT ON retention_size FOR EACH ROW EXECUTE FUNCTION refuse()`)
	if took, err := retention.New(b.Store).MeasureRuns(ctx, lease, 1); err == nil ||
		!slices.Equal(took, []workqueue.RunID{first}) {
		t.Errorf("measuring %v failed with %v; want %s", took, err, first)
	}
	b.Exec(`DROP TRIGGER refuse ON retention_size`)
	bytes := testenv.Must(retention.New(b.Store).GuessRun(ctx, lease, huge))(t)
	testenv.Same(t, bytes, 4096+9*(150+150), "bytes that it is guessed to have")
	if b.Number(sizes, huge) != 1 || b.Number(sizes, first) != 0 {
		t.Error("another run was guessed")
	}
	under := b.Load(storetest.Request(), 9)
	if bytes, err := retention.New(b.Store).GuessRun(ctx, lease, under); err != nil || bytes != 0 ||
		b.Number(sizes, under) != 0 {
		t.Errorf("a run in progress is guessed to have %d bytes, %v", bytes, err)
	}

	if !b.deleteRun(lease, deleted) {
		t.Fatal("it was not deleted")
	}
	b.Exec(`CREATE TRIGGER refuse BEFORE DELETE ON retention_size FOR EACH ROW EXECUTE FUNCTION refuse()`)
	testenv.SameList(t, testenv.Must(retention.New(b.Store).MeasureRuns(ctx, lease, 9))(t), []workqueue.RunID{first},
		"runs measured")
	b.Exec(`DROP TRIGGER refuse ON retention_size`)
	testenv.NoError(t, retention.New(b.Store).DropSizes(ctx, lease))
	if b.Number(sizes, deleted) != 0 || b.Number(sizes, first) != 1 {
		t.Error("the size of a deleted run, and no other, was to go")
	}
}

// PROOF: who may do what, 17.
// What is old goes, except what something still needs.
func TestOldThingsAreDeleted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	lease := b.Lead()
	ctx := t.Context()
	ended, under := b.Ended(9, time.Hour), b.Load(storetest.Request(), 9)
	b.PauseRun(under)
	for _, sql := range []string{
		`UPDATE run_event SET at = at - interval '100 days'`,
		`UPDATE retention SET age = interval '40 days' WHERE kind = 'audit'`, `UPDATE audit_expiry SET min_age = '0'`,
		`UPDATE dead_letter SET changed_at = changed_at - interval '100 days'`,
		`INSERT INTO dead_letter (id, msg_id, endpoint, cause, state, changed_at)
			VALUES (gen_random_uuid(), 'd', 'e', 'c', 'dropped', tranche_now() - interval '100 days'),
			(gen_random_uuid(), 'n', 'e', 'c', 'dropped', tranche_now())`,
		`UPDATE quarantine SET at = at - interval '100 days'`,
		`INSERT INTO node_session (id, host, pid, version, expires_at) SELECT gen_random_uuid(), 'h', 1, 'v',
			tranche_now() - interval '100 days' FROM generate_series(1, 5)`,
	} {
		b.Exec(sql)
	}
	testenv.Rewrite(t, b.Pool, `UPDATE audit_log SET at = at - interval '100 days'`)
	before := time.Now().Add(-50 * 24 * time.Hour)
	want := map[retention.RetentionKind]int64{
		retention.RetainEvents:     1, // its start: reports have the rest
		retention.RetainAudit:      int64(len(b.Actions(ended)) - 1),
		retention.RetainQuarantine: 1, retention.RetainDeadLetters: 1, retention.RetainSessions: 5,
		retention.RetainOccurrences: 0,
	}
	paused := b.Actions(under)
	for kind, n := range want {
		got := testenv.Must(retention.New(b.Store).DeleteOld(ctx, lease, kind, before, 1000))(t)
		testenv.Same(t, got, n, "%s: were deleted", kind)
	}
	testenv.SameList(t, b.Actions(under), paused, "what is known of a run in progress")
	testenv.SameList(t, b.Actions(ended), []string{"rerun by ann"}, "what is known of the finished run")
	b.Check()
	testenv.NoError(t, retention.New(b.Store).NoteDeleted(ctx, lease, retention.RetainAudit, 7))
	all, err := retention.New(b.Store).Retention(ctx)
	if err != nil || len(all) != len(retention.Kinds()) || all[2].LastDeleted != 7 || all[2].LastAt == nil {
		t.Errorf("%+v, %v", all, err)
	}
}

// A leader whose lease has passed on deletes nothing, whatever it does.
func TestRetentionIsFencedByTheEpoch(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old := b.Lead()
	run := b.Ended(9, time.Hour)
	b.Exec(`UPDATE leader SET expires_at = tranche_now()`)
	b.Session = b.Open()
	b.Lead()
	ctx := t.Context()
	for name, work := range map[string]func() error{
		"measure": func() error { _, err := retention.New(b.Store).MeasureRuns(ctx, old, 9); return err },
		"guess":   func() error { _, err := retention.New(b.Store).GuessRun(ctx, old, run); return err },
		"sizes":   func() error { return retention.New(b.Store).DropSizes(ctx, old) },
		"delete": func() error {
			_, err := retention.New(b.Store).DeleteRun(ctx, old, run, time.Now(), "x", "")
			return err
		},
		"old": func() error {
			_, err := retention.New(b.Store).DeleteOld(ctx, old, retention.RetainQuarantine, time.Now(), 9)
			return err
		},
		"forget":   func() error { return retention.New(b.Store).ForgetGone(ctx, old) },
		"note":     func() error { return retention.New(b.Store).NoteDeleted(ctx, old, retention.RetainRuns, 1) },
		"requests": func() error { _, err := session.New(b.Store).SweepRequests(ctx, old); return err },
	} {
		testenv.Is(t, work(), workqueue.ErrNotLeader, "%s", name)
	}
	if left := b.inTables(run); left["batchrun"] != 1 || left["quarantine"] != 1 {
		t.Errorf("there is left %v", left)
	}
}

// endless notes what is asked of PostgreSQL without a limit of time.
type endless struct {
	asked atomic.Int64
	said  atomic.Pointer[string]
}

func (e *endless) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	e.asked.Add(1)
	if _, limited := ctx.Deadline(); !limited {
		e.said.Store(&data.SQL)
	}
	return ctx
}

func (e *endless) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// What the leader tasks read ends, also when PostgreSQL's host has vanished and nothing says so.
func TestReadsOfLeaderTasksAreLimited(t *testing.T) {
	t.Parallel()
	config := testenv.Must(pgxpool.ParseConfig(testenv.Database(t)))(t)
	seen := &endless{}
	config.ConnConfig.Tracer = seen
	pool := testenv.Must(pgxpool.NewWithConfig(t.Context(), config))(t)
	t.Cleanup(pool.Close)
	store, ctx := database.New(pool), t.Context()
	age := time.Hour
	now := time.Now()
	runs := &retention.Retention{Kind: retention.RetainRuns, Limits: retention.Limits{Age: &age}}
	for name, read := range map[string]func() error{
		"limits":              func() error { _, err := retention.New(store).Retention(ctx); return err },
		"cutoff":              func() error { _, err := retention.New(store).RetentionCutoff(ctx, runs); return err },
		"runs":                func() error { _, err := retention.New(store).RunsPastLimits(ctx, now, 9, nil); return err },
		"going":               func() error { _, err := retention.New(store).GoingRuns(ctx, 9); return err },
		"due":                 func() error { _, err := retention.New(store).RetentionDue(ctx); return err },
		"due schedules":       func() error { _, err := schedule.New(store).DueSchedules(ctx, 1); return err },
		"waiting occurrences": func() error { _, err := schedule.New(store).WaitingOccurrences(ctx, 1); return err },
		"next schedule":       func() error { _, _, err := schedule.New(store).NextScheduleTime(ctx); return err },
		"plan by its key":     func() error { _, _ = start.New(store).Keyed(ctx, "k"); return nil },
		"plan":                func() error { _, _ = inspect.New(store).Plan(ctx, "p", 0); return nil },
		"load": func() error {
			req := storetest.Request()
			req.IdempotencyKey = "k"
			_, _ = start.New(store).Load(ctx, req, func(*start.LoadItem) error { return io.EOF })
			return nil
		},
	} {
		asked := seen.asked.Load()
		testenv.Same(t, read(), nil, "%s", name)
		if seen.asked.Load() == asked {
			t.Errorf("%s: nothing was asked", name)
		}
		if sql := seen.said.Swap(nil); sql != nil {
			t.Errorf("%s: may last indefinitely: %s", name, *sql)
		}
	}
}

// What was not done in time may be tried with less, whoever's limit it was; what fails in other ways may not.
func TestTookTooLong(t *testing.T) {
	t.Parallel()
	pool := testenv.Pool(t)
	asked := func(ctx context.Context, limit, sql string) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, `SET LOCAL `+limit); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, sql)
			return err
		})
	}
	short, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	defer cancel()
	held := testenv.Must(pool.Begin(t.Context()))(t)
	defer func() { _ = held.Rollback(t.Context()) }()
	testenv.Must(held.Exec(t.Context(), `LOCK TABLE retention`))(t)
	for name, tc := range map[string]struct {
		err  error
		want bool
	}{
		"our time":        {asked(short, `statement_timeout = 0`, `SELECT pg_sleep(600)`), true},
		"PostgreSQL's":    {asked(t.Context(), `statement_timeout = '1ms'`, `SELECT pg_sleep(600)`), true},
		"a lock":          {asked(t.Context(), `lock_timeout = '1ms'`, `SELECT FROM retention`), false},
		"wrong":           {asked(t.Context(), `lock_timeout = '1s'`, `SELECT 1 / 0`), false},
		"another's lease": {workqueue.ErrNotLeader, false},
	} {
		if got := retention.TookTooLong(tc.err); got != tc.want || tc.err == nil {
			t.Errorf("%s: %v is %t", name, tc.err, got)
		}
	}
}

// bench adds what this package's tests do.
type bench struct{ *storetest.Bench }

func setup(t *testing.T) *bench {
	t.Helper()
	return &bench{storetest.Setup(t)}
}

func TestMain(m *testing.M) { testenv.Main(m) }
