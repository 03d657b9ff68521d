package settle

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/internal/plane"
)

// What is looked for repeatedly costs what is found of it. What waits, and what there ever was, costs nothing,
// also by plans that are kept since there was nothing.
func TestLooksCostWhatTheyFind(t *testing.T) {
	t.Parallel()
	conn := testenv.Must(testenv.Pool(t).Acquire(t.Context()))(t)
	defer conn.Release()
	looks := []struct {
		name, statement, arguments, settings string
		most                                 int // rows
	}{
		{"lost streams", slicesOfLostStreams, `2000`, generic, 0},
		{"dead sessions", slicesOfDeadSessions, `2000`, generic, 0},
		{"overdue", overdue, `500, 10, '10s'`, generic, 0},
		{"unanswered", sentAt, `'5s', 1, 3, 1000, 9223372036854775807, 50`, plane.PlanOnce, 50},
		{"before the stream", sentAt, `'5s', 1, 3, 0, 1, 2000`, plane.PlanOnce, 0},
		{"still unanswered", stillSent, `'{}', 1, 3`, plane.PlanOnce, 0},
		{"stopped lanes", runWithStopped, `'00000000-0000-0000-0000-000000000000'`, generic, 0},
	}
	for _, l := range looks {
		prepare(t, conn, l.name, l.statement)
		read(t, conn, l.name, l.arguments, l.settings)
	}
	for _, sql := range muchThatIsWell {
		testenv.Must(conn.Exec(t.Context(), sql))(t)
	}
	for range 2 {
		for _, l := range looks {
			if rows, plan := read(t, conn, l.name, l.arguments, l.settings); rows > l.most {
				t.Errorf("the search for %s reads %d rows, and finds %d:\n%s", l.name, rows, l.most, plan)
			}
		}
		testenv.Must(conn.Exec(t.Context(), `ANALYZE`))(t) // and again, by plans that are made now
	}
	prepare(t, conn, "careless", `SELECT id FROM work_slice s WHERE s.state = 'sent' AND `+ofLostStream+` LIMIT $1`)
	if rows, plan := read(t, conn, "careless", `2000`, generic); rows < 3000 {
		t.Errorf("nothing is found in a look that is bad, and reads %d rows:\n%s", rows, plan)
	}
}

// Who continues behind the last place of a page meets each unanswered slice once, however many there are.
func TestUnansweredSlicesComeByTheirPlaces(t *testing.T) {
	t.Parallel()
	pool := testenv.Pool(t)
	conn := testenv.Must(pool.Acquire(t.Context()))(t)
	defer conn.Release()
	for _, sql := range muchThatIsWell {
		testenv.Must(conn.Exec(t.Context(), sql))(t)
	}
	store := New(database.New(pool))
	met := map[workqueue.SliceID]bool{}
	for at := int64(100); ; {
		page := testenv.Must(store.Unanswered(t.Context(), 1, time.Minute, at, 2901, 700))(t)
		for _, u := range page {
			if u.StreamSeq <= at || met[u.ID] {
				t.Fatalf("slice %s at place %d comes behind place %d", u.ID, u.StreamSeq, at)
			}
			at, met[u.ID] = u.StreamSeq, true
		}
		if len(page) < 700 {
			break
		}
	}
	testenv.Same(t, len(met), 2800, "slices lie behind place 100 and before place 2901")
	still := testenv.Must(store.StillUnanswered(t.Context(), 1, slices.Collect(maps.Keys(met))))(t)
	testenv.Same(t, len(still), len(met), "are still unanswered")
	still = testenv.Must(store.StillUnanswered(t.Context(), 2, slices.Collect(maps.Keys(met))))(t)
	testenv.Same(t, len(still), 0, "were sent in another epoch")
}

const generic = `SELECT set_config('plan_cache_mode', 'force_generic_plan', true)`

// Requests of runs in progress that no one takes, and answered ones.
var muchThatIsWell = []string{
	`SET session_replication_role = replica`,
	`INSERT INTO stream_epoch (name, epoch, work_created, reply_created)
		VALUES ('streams', 1, tranche_now(), tranche_now())`,
	`INSERT INTO batchrun (id, plan, spec, state) SELECT gen_random_uuid(), 'p', '{}', 'running'
	FROM generate_series(1, 3000)`,
	`INSERT INTO work_slice (id, run_id, step, block, generation, mask, remaining, state, attempt, cause, endpoint,
		stream_epoch, stream_seq, sent_at, deadline)
	SELECT gen_random_uuid(), id, 0, 0, 1, B'0'::bit(8192), B'0'::bit(8192), 'sent', 1, 'ready', 'statement',
		1, row_number() OVER (), tranche_now() - interval '1h', tranche_now() + interval '1h' FROM batchrun`,
	`INSERT INTO work_slice (id, run_id, step, block, generation, mask, remaining, state, attempt, cause, endpoint,
		stream_epoch, stream_seq, sent_at, deadline, ended_at)
	SELECT gen_random_uuid(), run_id, step, block, generation, mask, remaining, 'recorded', attempt, cause, endpoint,
		stream_epoch, stream_seq, sent_at, tranche_now(), tranche_now() FROM work_slice`,
	`SET session_replication_role = DEFAULT`,
}

func prepare(t *testing.T, conn *pgxpool.Conn, name, statement string) {
	t.Helper()
	sql := `PREPARE ` + pgx.Identifier{name}.Sanitize() + ` AS ` + statement
	_, err := conn.Exec(t.Context(), sql, pgx.QueryExecModeSimpleProtocol)
	testenv.MustSame(t, err, nil, "%s", name)
}

// read carries a prepared statement out, and returns how many rows of work and of runs it reads.
func read(t *testing.T, conn *pgxpool.Conn, name, arguments, settings string) (rows int, plan string) {
	t.Helper()
	of, plan := testenv.RowsRead(t, conn, settings, `EXECUTE `+pgx.Identifier{name}.Sanitize()+`(`+arguments+`)`)
	return of["work_slice"] + of["work_lane"] + of["batchrun"], plan
}

// Completions are planned once and well, even when there is nothing yet.
func TestPlanOfCompletionsInEmptyTables(t *testing.T) {
	t.Parallel()
	pool := testenv.Connect(t, testenv.Database(t))
	testenv.Must(pool.Exec(t.Context(), `ANALYZE`))(t)
	plan := strings.Join(testenv.Plan(t, pool, completeRuns, `'{}'`, plane.PlanOnce),
		"\n")
	if bad := testenv.WholeScans(plan); len(bad) > 0 {
		t.Errorf("the plan goes through everything:\n%s\n%s", strings.Join(bad, "\n"), plan)
	}
}
