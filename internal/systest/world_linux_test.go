package systest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/start"
)

const (
	items = 3000 // of a run, unless a test has others
	chunk = 100
	limit = 3 * time.Minute // for anything to happen
)

// world is a database and a NATS server that outlive the processes under test.
type world struct {
	*testing.T
	url    string
	pool   *pgxpool.Pool
	store  *database.DB
	ns     testenv.Server
	ledger string
	items  int
	loader workqueue.SessionID // of the node in whose name runs are loaded, when that takes long; zero: none
}

func setup(t *testing.T) *world {
	t.Helper()
	url := testenv.Database(t)
	pool := testenv.Connect(t, url)
	return &world{T: t, url: url, pool: pool, store: database.New(pool), ns: testenv.NATS(t),
		ledger: t.TempDir() + "/ledger", items: items}
}

type process struct {
	cmd   *exec.Cmd
	ended chan struct{}
	err   error // valid once ended
	said  testenv.Log
}

// session is that of a node that is ready.
func (p *process) session() string {
	_, said, _ := strings.Cut(p.said.String(), ready+" ")
	id, _, _ := strings.Cut(said, "\n")
	return id
}

// start runs a child and returns when it is ready. It is killed at the end of the test at the latest.
func (w *world) start(role string, env ...string) *process {
	w.Helper()
	p := &process{cmd: exec.Command(os.Args[0], "-test.run=^$"), ended: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), roleVariable+"="+role, databaseVariable+"="+w.url,
		natsVariable+"="+w.ns.URL(), ledgerVariable+"="+w.ledger)
	p.cmd.Env = append(p.cmd.Env, env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.said, &p.said
	testenv.NoError(w, p.cmd.Start())
	go func() {
		p.err = p.cmd.Wait()
		close(p.ended)
	}()
	w.Cleanup(func() {
		_ = p.cmd.Process.Kill() // most have ended by now
		<-p.ended
		if w.Failed() {
			w.Logf("%s said:\n%.20000s", role, p.said.String())
		}
	})
	w.until(role+" is ready or dead", func() bool {
		select {
		case <-p.ended:
			return true
		default:
			return strings.Contains(p.said.String(), ready)
		}
	})
	return p
}

func (w *world) signal(p *process, s syscall.Signal) {
	w.Helper()
	testenv.NoError(w, p.cmd.Process.Signal(s))
}

// wantKilled waits until a child has died of SIGKILL.
func (w *world) wantKilled(p *process) {
	w.Helper()
	w.await(p)
	var exit *exec.ExitError
	if !errors.As(p.err, &exit) || exit.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
		w.Fatalf("the process ended with %v; want it killed", p.err)
	}
}

func (w *world) await(p *process) {
	w.Helper()
	select {
	case <-p.ended:
	case <-time.After(limit):
		w.Fatal("the process did not end")
	}
}

func (w *world) until(what string, met func() bool) { w.Helper(); testenv.Until(w, limit, what, met) }

// load makes a run whose deadlines lie beyond the test: what comes again comes for a better reason.
func (w *world) load() workqueue.RunID {
	w.Helper()
	step := workqueue.StepSpec{Name: "statement", Endpoint: "statement", StepSettings: workqueue.StepSettings{
		Chunk: chunk, MaxAttempts: 3, InFlight: 8, Timeout: 10 * time.Minute, RetryBackoff: 10 * time.Millisecond}}
	loaded := testenv.Must(start.New(w.store).Load(w.Context(), start.LoadRequest{Plan: "statement", CreatedBy: "test",
		Steps: []workqueue.StepSpec{step}, Session: w.loader}, nodetest.Items(w.items)))(w)
	return loaded.Run
}

func (w *world) number(sql string, args ...any) int {
	w.Helper()
	return testenv.Number(w, w.pool, sql, args...)
}

func (w *world) complete(run workqueue.RunID) {
	w.Helper()
	w.until("the run is complete", func() bool {
		return w.number(`SELECT count(*) FROM batchrun WHERE id = $1 AND state = 'completed'`, run) == 1
	})
}

func (w *world) done(run workqueue.RunID) int {
	w.Helper()
	return w.number(`SELECT coalesce(sum(bit_count(done | failed)), 0) FROM work_block WHERE run_id = $1`, run)
}

type execution struct {
	slice               workqueue.SliceID
	ordinal, generation int
}

func (w *world) executions() map[execution]int {
	w.Helper()
	text := testenv.Must(os.ReadFile(w.ledger))(w)
	all := map[execution]int{}
	for line := range strings.Lines(string(text)) {
		var e execution
		var slice string
		_, err := fmt.Sscan(line, &slice, &e.ordinal, &e.generation)
		testenv.MustSame(w, err, nil, "ledger line %q", line)
		testenv.NoError(w, e.slice.UnmarshalText([]byte(slice)))
		all[e]++
	}
	return all
}

// wantSound waits until a run of one step is complete and holds it against the ledger (I5), its results and the doctor.
// It returns the number of executions beyond one for each item.
func (w *world) wantSound(run workqueue.RunID) (extra int) {
	w.Helper()
	w.complete(run)
	right := w.number(`SELECT count(*) FROM work_result p JOIN work_queue q USING (run_id, ordinal)
		WHERE run_id = $1 AND convert_from(p.result, 'utf8')::json->>'of' = q.item_key`, run)
	testenv.Same(w, right, w.items, "results of %d are right", w.items)
	testenv.Same(w, w.number(`SELECT count(*) FROM run_event WHERE run_id = $1 AND kind = 'completed'`, run), 1,
		"times the completion was reported")
	nodetest.WantInvariants(w.T, w.store)
	executed := map[int]int{}
	var slices []workqueue.SliceID
	var ordinals []int
	for e, n := range w.executions() {
		executed[e.ordinal] += n
		extra += n
		slices, ordinals = append(slices, e.slice), append(ordinals, e.ordinal)
	}
	if n := w.number(`SELECT count(*) FROM unnest($1::uuid[], $2::int[]) AS e (slice, ordinal)
		WHERE NOT EXISTS (SELECT FROM work_slice s WHERE s.id = e.slice AND s.block = e.ordinal / 8192
			AND get_bit(s.mask, e.ordinal % 8192) = 1)`, slices, ordinals); n != 0 {
		w.Fatalf("%d items were executed for slices that did not hold them", n)
	}
	testenv.Same(w, len(executed), w.items, "items were executed of %d", w.items)
	return extra - len(executed)
}
