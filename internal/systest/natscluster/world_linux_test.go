package natscluster

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/database"
)

const (
	limit = 2 * time.Minute // for anything to happen

	// The endpoints: of a service of the Go SDK, and of examples/node.
	statement = "statement"
	interest  = "node-interest"
)

func TestMain(m *testing.M) {
	if config := os.Getenv(natsServerVariable); config != "" {
		if err := beNATSServer(config); err != nil {
			fmt.Fprintln(os.Stderr, "NATS server:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	testenv.Main(m)
}

// world is a cluster, a database, nodes on them, and services.
type world struct {
	*testing.T
	cluster *servers
	binary  string
	script  string // the service in Node.js
	url     string
	pool    *pgxpool.Pool
	store   *database.DB
	nc      *nats.Conn
	api     string // of one of the nodes
	ledger  *ledger
}

// ledger knows how often a service of the Go SDK was asked for each item.
type ledger struct {
	mu       sync.Mutex
	executed map[workqueue.RunID]map[int]int
}

// newWorld has two nodes and two services of each kind on a cluster, with streams of three replicas.
func newWorld(t *testing.T, cluster *servers, binary, script string) *world {
	t.Helper()
	w := &world{T: t, cluster: cluster, binary: binary, script: script, url: testenv.Database(t),
		nc: testenv.Dial(t, cluster.URL()), ledger: &ledger{executed: map[workqueue.RunID]map[int]int{}}}
	w.pool = testenv.Connect(t, w.url)
	w.store = database.New(w.pool)
	for range 2 {
		w.startNode()
	}
	t.Setenv("NATS_URL", cluster.URL())
	for range 2 {
		w.startService()
		w.startNodeJS()
	}
	w.until("services listen", func() bool {
		listeners, err := wire.Discover(t.Context(), w.nc, 300*time.Millisecond)
		return err == nil && len(of(listeners, statement)) == 2 && len(of(listeners, interest)) == 2
	})
	return w
}

func of(all []wire.Listener, endpoint string) (found []wire.Listener) {
	for _, l := range all {
		if l.Endpoint == endpoint {
			found = append(found, l)
		}
	}
	return found
}

// run starts a child that is told to end at the end of the test, and killed when it does not. It returns what it
// prints.
func (w *world) run(name string, cmd *exec.Cmd) io.Reader {
	w.Helper()
	var said testenv.Log
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	testenv.NoError(w, err)
	w.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		patience := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		_, _ = io.Copy(&said, out)
		_ = cmd.Wait() // it may have been killed
		patience.Stop()
		if w.Failed() {
			w.Logf("%s said:\n%.20000s", name, said.String())
		}
	})
	return out
}

func (w *world) startNode() {
	w.Helper()
	cmd := exec.Command(w.binary, "--json", "serve", "--database", w.url, "--nats", w.cluster.URL(),
		"--listen", "127.0.0.1:0", "--data-dir", w.TempDir(), "--stream-replicas", "3",
		"--work-max-bytes", "256MiB", "--reply-max-bytes", "256MiB", "--stage-max-bytes", "64MiB",
		"--flow-max-bytes", "64MiB",
		"--event-max-bytes", "64MiB", "--dead-max-bytes", "64MiB")
	cmd.Env = testenv.PlainEnv()
	out := w.run("serve", cmd)
	where := map[string]string{}
	testenv.MustSame(w, json.NewDecoder(out).Decode(&where), nil, "serve did not start")
	w.api = where["api"]
}

func (w *world) startNodeJS() {
	w.Helper()
	cmd := exec.Command("node", w.script)
	cmd.Env = append(testenv.PlainEnv(), "NATS_URL="+w.cluster.URL())
	w.run("node-interest", cmd)
}

type account struct {
	ID string `json:"id"`
}

type answer struct {
	Of string `json:"of"`
}

// startService runs a service of the Go SDK, set up as its documentation says, that notes what it is asked for.
func (w *world) startService() {
	w.Helper()
	nc := testenv.Must(endpoints.Connect(endpoints.LogTo(zap.NewNop())))(w)
	svc := testenv.Must(endpoints.New(nc, endpoints.Config{Name: "statement", Version: "1.0.0"}))(w)
	err := endpoints.HandleList(svc, statement, func(_ context.Context, c *endpoints.Chunk[account, answer]) error {
		w.ledger.note(c)
		for _, item := range c.Items() {
			item.Reply(answer{Of: item.In.ID})
		}
		return nil
	}, endpoints.Concurrency(4))
	testenv.NoError(w, err)
	w.Cleanup(nc.Close)
	testenv.Keep(w, w.Errorf, "the service", svc.Run)
}

func (l *ledger) note(c *endpoints.Chunk[account, answer]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	run := workqueue.RunID(c.Meta().Run)
	if l.executed[run] == nil {
		l.executed[run] = map[int]int{}
	}
	for _, item := range c.Items() {
		l.executed[run][item.Ordinal]++
	}
}

// start begins a run of one step whose deadlines lie beyond the test, at a rate, or as fast as it goes at 0.
func (w *world) start(endpoint string, items int, rate int) workqueue.RunID {
	w.Helper()
	var csv bytes.Buffer
	csv.WriteString("id,balance\n")
	for i := range items {
		fmt.Fprintf(&csv, "C%d,%d\n", i, 2*i)
	}
	file := filepath.Join(w.TempDir(), "items.csv")
	testenv.NoError(w, os.WriteFile(file, csv.Bytes(), 0o600))
	args := []string{"--json", "run", "start", "--endpoint", endpoint, "--items", file}
	if rate > 0 {
		args = append(args, "--chunk", "50", "--rate", fmt.Sprint(rate))
	}
	code, out := w.command(args...)
	var started struct {
		Run workqueue.RunID `json:"run"`
	}
	testenv.NoError(w, json.Unmarshal([]byte(out), &started))
	testenv.MustSame(w, code, 0, "start: exit code\n%s", out)
	return started.Run
}

func (w *world) until(what string, met func() bool) { w.Helper(); testenv.Until(w, limit, what, met) }

func (w *world) number(sql string, args ...any) int {
	w.Helper()
	return testenv.Number(w, w.pool, sql, args...)
}

// command runs a command of tranche, and returns its exit code and what it printed.
func (w *world) command(args ...string) (code int, out string) {
	w.Helper()
	cmd := exec.Command(w.binary, append([]string{"--url", w.api}, args...)...)
	cmd.Env = testenv.PlainEnv()
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, w.Output()
	_ = cmd.Run() // its code says it
	return cmd.ProcessState.ExitCode(), said.String()
}

func (w *world) must(args ...string) {
	w.Helper()
	if code, out := w.command(args...); code != 0 {
		w.Fatalf("tranche %s: exit code %d\n%s", strings.Join(args, " "), code, out)
	}
}

const (
	rightStatements = `SELECT count(*) FROM work_result p JOIN work_queue q USING (run_id, ordinal)
WHERE run_id = $1 AND convert_from(p.result, 'utf8')::json->>'of' = q.item_key`
	rightInterest = `SELECT count(*) FROM work_result p JOIN work_queue q USING (run_id, ordinal)
WHERE run_id = $1 AND (convert_from(p.result, 'utf8')::json->>'amount')::numeric = q.ordinal * 0.03`
)

// wantSound waits until a run is complete, and holds it against the ledger and its results. It returns how many
// executions there were beyond one for each item, of a run of the Go service.
func (w *world) wantSound(run workqueue.RunID, endpoint string, items int) (extra int) {
	w.Helper()
	w.until("the run completes", func() bool {
		return w.number(`SELECT count(*) FROM batchrun WHERE id = $1 AND state = 'completed' AND done = $2`, run, items) == 1
	})
	testenv.Must(w.pool.Exec(context.Background(), "ANALYZE work_result, work_queue"))(w)
	right := rightStatements
	if endpoint == interest {
		right = rightInterest
	}
	testenv.Same(w, w.number(right, run), items, "results of %d are right", items)
	testenv.Same(w, w.number(`SELECT count(*) FROM run_event WHERE run_id = $1 AND kind = 'completed'`, run), 1,
		"times the completion was reported")
	if endpoint == interest {
		return 0
	}
	w.ledger.mu.Lock()
	defer w.ledger.mu.Unlock()
	testenv.Same(w, len(w.ledger.executed[run]), items, "items were executed of %d", items)
	for _, n := range w.ledger.executed[run] {
		extra += n - 1
	}
	return extra
}

// kinds are the endpoints, one of each kind of service.
func kinds() []string { return []string{statement, interest} }
