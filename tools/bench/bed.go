package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/tools/demokit"
)

// bedWarmItems go through a fresh node and service first, so that statements are prepared and buffers grown.
const bedWarmItems = 20_000

// bed is a node with default settings, in a separate process and database, and the services of a measurement.
type bed struct {
	pg       *cluster
	program  string // tranche
	database string // URL
	dir      string // the node's data directory
	api      string
	db       *pgx.Conn
	nc       *nats.Conn
	node     *demokit.Child
	service  *demokit.Child   // echo
	nodes    []*demokit.Child // more nodes
	others   []*demokit.Child // more services
	finished chan finish
}

type finish struct {
	run    string
	loaded time.Time // when the API answered the start
	at     time.Time
}

// checkProgram fails before the measurement, not minutes later.
func checkProgram(cfg config) {
	if slices.ContainsFunc(cfg.only, func(part string) bool {
		return !slices.Contains([]string{"floor", "floor-raw", "floor-gather", "river"}, part)
	}) {
		_, err := os.Stat(cfg.binary)
		check(err, "the tranche program; run make build, or name it with -binary")
	}
}

// onBed starts a node on a fresh database, and after use ends all processes and removes their data.
func (pg *cluster) onBed(ctx context.Context, program, database string, use func(*bed)) {
	pg.withDatabase(ctx, database, func(url string) {
		b := &bed{pg: pg, program: program, database: url, finished: make(chan finish, 16)}
		err := demokit.Try(func() {
			b.open(ctx)
			use(b)
		})
		demokit.Stop(errors.Join(err, b.close()))
	})
}

func (b *bed) open(ctx context.Context) {
	var at struct {
		API string `json:"api"`
	}
	b.node, b.dir = b.startNode(ctx, "tranche serve", &at, "--nats-listen", "127.0.0.1:0")
	b.api = at.API
	login, err := os.ReadFile(filepath.Join(b.dir, wire.NATSURLName)) // includes the private server's password
	check(err, "read where the node's NATS is")
	b.nc, err = nats.Connect(strings.TrimSpace(string(login)))
	check(err, "connect to the node's NATS")
	b.db, err = pgx.Connect(ctx, b.database)
	check(err, "connect to the node's database")
	_, err = b.db.Exec(ctx, "SET enable_nestloop = off") // for joins of tables that were not analyzed yet
	check(err, "prepare the node's database")
	b.onCompletion(func(run string, at time.Time) { b.finished <- finish{run: run, at: at} })
}

// warm starts the echo service and completes runs.
func (b *bed) warm(ctx context.Context) {
	b.startService()
	for _, endpoint := range []string{echoEndpoint, flowEndpoint} {
		b.complete(ctx, work{endpoint: endpoint}, items{n: bedWarmItems})
	}
	b.pg.checkpoint(ctx)
}

// startNode starts a node with a new data directory and waits until it is ready.
func (b *bed) startNode(ctx context.Context, name string, into any, args ...string) (c *demokit.Child, dir string) {
	dir, err := os.MkdirTemp(b.pg.dir, "node-")
	check(err, "make a directory for a node")
	cmd := exec.Command(b.program, append([]string{"serve", "--json", "--database", b.database, "--data-dir", dir,
		"--listen", "127.0.0.1:0", "--log-level", "warn"}, args...)...)
	cmd.Env = demokit.Environment()
	c, err = demokit.StartAnnounced(ctx, name, b.pg.log(name), cmd, into)
	if err != nil && c != nil {
		b.nodes = append(b.nodes, c) // to be stopped
	}
	demokit.Stop(err)
	return c, dir
}

func (b *bed) another(ctx context.Context) {
	c, _ := b.startNode(ctx, "another tranche serve", &struct{}{}, "--nats", b.nc.ConnectedUrl())
	b.nodes = append(b.nodes, c)
}

func (b *bed) startService() { b.service = b.serve("the echo service", echoArgument) }

// serve runs this program as a service, see [serveAs].
func (b *bed) serve(name, argument string, more ...string) *demokit.Child {
	self, err := os.Executable()
	check(err, "find this program")
	cmd := exec.Command(self, append([]string{argument, b.nc.ConnectedUrl()}, more...)...)
	cmd.Env = demokit.Environment()
	return demokit.Must(demokit.StartChild(name, b.pg.log(name), cmd))
}

// onCompletion subscribes to completions; messages published to a stream also reach plain subscribers.
func (b *bed) onCompletion(f func(run string, at time.Time)) {
	b.subscribe(wire.EventSubject("run.completed"), func(m *nats.Msg) {
		now := time.Now()
		var event struct {
			Run string `json:"run"`
		}
		if json.Unmarshal(m.Data, &event) == nil {
			f(event.Run, now)
		}
	})
}

func (b *bed) subscribe(subject string, f nats.MsgHandler) {
	_, err := b.nc.Subscribe(subject, f)
	check(errors.Join(err, b.nc.Flush()), "subscribe to %s", subject)
}

// close ends the processes and removes their data, in any state.
func (b *bed) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	var err error
	if b.nc != nil {
		b.nc.Close()
	}
	if b.db != nil {
		err = b.db.Close(ctx)
	}
	for _, c := range slices.Concat(b.others, []*demokit.Child{b.service}, b.nodes, []*demokit.Child{b.node}) {
		if c != nil {
			err = errors.Join(err, c.Stop(ctx))
		}
	}
	return errors.Join(err, os.RemoveAll(b.dir))
}

func (b *bed) String() string {
	return "every setting at its default, one node, one service with one handler, embedded nats-server " +
		b.nc.ConnectedServerVersion() + " in the node"
}

type started struct {
	Run   string `json:"run"`
	Items int64  `json:"items"`
}

type work struct{ endpoint, plan string }

// start streams the items to the API as CSV and returns when the run has started. Clients may call it concurrently.
func (b *bed) start(ctx context.Context, of work, input items) (run started, err error) {
	query := url.Values{"key": {"id"}, "format": {"csv"}, "endpoint": {of.endpoint}}
	if of.plan != "" {
		query.Del("endpoint")
		query.Set("plan_ref", of.plan)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("start a run: %w", err)
		}
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.api+"/api/v1/runs?"+query.Encode(), input.csv())
	if err != nil {
		return run, err
	}
	req.Header.Set("Content-Type", "text/csv")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return run, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	switch {
	case err != nil:
		return run, err
	case resp.StatusCode != http.StatusCreated:
		return run, fmt.Errorf("the API answers %s: %s", resp.Status, body)
	}
	err = json.Unmarshal(body, &run)
	if err == nil && run.Items != int64(input.n) {
		err = fmt.Errorf("the API took %d items of %d", run.Items, input.n)
	}
	return run, err
}

// complete runs the items to their end and returns the time of the completion event.
func (b *bed) complete(ctx context.Context, of work, input items) finish {
	ctx, cancel := context.WithTimeout(ctx, input.timeout())
	defer cancel()
	run := demokit.Must(b.start(ctx, of, input))
	loaded := time.Now()
	done := b.completion(ctx, run.Run)
	done.loaded = loaded
	return done
}

func (b *bed) completion(ctx context.Context, run string) (done finish) {
	for done.run != run {
		var err error
		select {
		case done = <-b.finished:
		case <-b.node.Exited():
			err = b.node.Failure()
		case <-b.service.Exited():
			err = b.service.Failure()
		case <-ctx.Done():
			err = ctx.Err()
		}
		check(err, "wait for run %s; the logs are in %s", run, b.pg.logs)
	}
	return done
}

// runProof counts the results of the first steps that equal their item's stored payload, which is what was sent.
const runProof = `SELECT count(*) FROM batchrun r
JOIN work_queue q ON q.run_id = r.id
JOIN work_result p ON p.run_id = q.run_id AND p.ordinal = q.ordinal AND p.step < $2 AND p.generation = 1
WHERE r.id = $1 AND r.state = 'completed' AND r.done = r.items AND r.failed = 0
  AND convert_from(p.result, 'UTF8') = q.payload AND q.payload::jsonb ->> 'id' = q.item_key`

// command runs a tranche command and returns its JSON output.
func (b *bed) command(ctx context.Context, in io.Reader, args ...string) []byte {
	cmd := exec.CommandContext(ctx, b.program, append([]string{"--url", b.api, "--json"}, args...)...)
	var out, said bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &out, &said
	cmd.Env = demokit.Environment()
	if err := cmd.Run(); err != nil {
		demokit.Stop(fmt.Errorf("tranche %s %s: %w; it said:\n%s", args[0], args[1], err, &said))
	}
	return out.Bytes()
}

func (b *bed) applyPlan(ctx context.Context, plan string) {
	b.command(ctx, strings.NewReader(plan), "plan", "apply", "-")
}

// number asks the node's database.
func (b *bed) number(ctx context.Context, sql string, args ...any) (n float64) {
	check(b.db.QueryRow(ctx, sql, args...).Scan(&n), "ask the node's database")
	return n
}

const bedPoll = 20 * time.Millisecond

// until waits for an SQL condition, at most for atMost.
func (b *bed) until(ctx context.Context, atMost time.Duration, what, sql string, args ...any) {
	timed, cancel := context.WithTimeout(ctx, atMost)
	defer cancel()
	for {
		var met bool
		check(b.db.QueryRow(ctx, "SELECT "+sql, args...).Scan(&met), "ask whether %s", what)
		if met {
			return
		}
		check(backoff.Sleep(timed, bedPoll), "wait until %s; the logs are in %s", what, b.pg.logs)
	}
}

const (
	countDone = `SELECT coalesce(sum(bit_count(done)), 0)::float8 FROM work_block WHERE run_id = $1`
	hasBegun  = `EXISTS (SELECT FROM work_block WHERE run_id = $1 AND bit_count(done) > 0)`
)
