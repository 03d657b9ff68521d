package main

import (
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
	"github.com/tranchehq/tranche/tools/demokit"
)

const (
	// bedWarmItems go through a fresh node and service first, so that statements are prepared and buffers grown.
	bedWarmItems = 20_000
)

// bed is a node and an echo service, separate processes with their own database.
type bed struct {
	pg       *cluster
	name     string // of the database
	database string // its URL
	program  string // tranche
	dir      string // the node's data directory
	api      string
	node     *demokit.Child
	service  *demokit.Child
	nodes    []*demokit.Child // more nodes
	others   []*demokit.Child // more services
	nc       *nats.Conn
	finished chan finish
}

type finish struct {
	run    string
	loaded time.Time // when the API answered the start
	at     time.Time
}

// checkProgram fails before the measurement, not minutes later.
func checkProgram(cfg config) error {
	if !slices.ContainsFunc(cfg.only, func(part string) bool {
		return !slices.Contains([]string{"floor", "floor-raw", "floor-gather", "river"}, part)
	}) {
		return nil
	}
	if _, err := os.Stat(cfg.binary); err != nil {
		return fmt.Errorf("the tranche program: %w; run make build, or name it with -binary", err)
	}
	return nil
}

// openBed starts everything with default settings and completes a warm-up run.
func openBed(ctx context.Context, cfg config, pg *cluster) (b *bed, err error) {
	if b, err = openNode(ctx, cfg, pg, "tranche"); err != nil {
		return b, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if err := b.startService(); err != nil {
		return b, err
	}
	for _, endpoint := range []string{echoEndpoint, flowEndpoint} {
		if _, err := b.complete(ctx, work{endpoint: endpoint}, items{n: bedWarmItems}); err != nil {
			return b, fmt.Errorf("warm up the node: %w", err)
		}
	}
	return b, pg.checkpoint(ctx)
}

func openNode(ctx context.Context, cfg config, pg *cluster, name string) (b *bed, err error) {
	b = &bed{pg: pg, program: cfg.binary, finished: make(chan finish, 16)}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if b.name, b.database, err = pg.freshDatabase(ctx, name); err != nil {
		return b, err
	}
	var at struct {
		API string `json:"api"`
	}
	if b.node, b.dir, err = b.startNode(ctx, "tranche serve", &at, "--nats-listen", "127.0.0.1:0"); err != nil {
		return b, err
	}
	b.api = at.API
	login, err := os.ReadFile(filepath.Join(b.dir, wire.NATSURLName)) // includes the private server's password
	if err != nil {
		return b, fmt.Errorf("read where the node's NATS is: %w", err)
	}
	if b.nc, err = nats.Connect(strings.TrimSpace(string(login))); err != nil {
		return b, fmt.Errorf("connect to the node's NATS: %w", err)
	}
	return b, b.subscribe()
}

// startNode starts a node with a new data directory and waits until it is ready.
func (b *bed) startNode(
	ctx context.Context, name string, into any, args ...string,
) (c *demokit.Child, dir string, err error) {
	if dir, err = os.MkdirTemp(b.pg.dir, "node-"); err != nil {
		return nil, "", fmt.Errorf("make a directory for a node: %w", err)
	}
	cmd := exec.Command(b.program, append([]string{"serve", "--json", "--database", b.database, "--data-dir", dir,
		"--listen", "127.0.0.1:0", "--log-level", "warn"}, args...)...)
	cmd.Env = demokit.Environment()
	c, err = demokit.StartAnnounced(ctx, name, b.pg.log(name), cmd, into)
	return c, dir, err
}

func (b *bed) another(ctx context.Context) error {
	c, _, err := b.startNode(ctx, "another tranche serve", &struct{}{}, "--nats", b.nc.ConnectedUrl())
	if c != nil {
		b.nodes = append(b.nodes, c)
	}
	return err
}

func (b *bed) startService() (err error) {
	b.service, err = b.serve("the echo service", echoArgument, b.nc.ConnectedUrl())
	return err
}

func (b *bed) serve(name string, args ...string) (*demokit.Child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find this program: %w", err)
	}
	cmd := exec.Command(self, args...)
	cmd.Env = demokit.Environment()
	return demokit.StartChild(name, b.pg.log(name), cmd)
}

func (b *bed) subscribe() error {
	return onCompletion(b.nc, func(run string, at time.Time) { b.finished <- finish{run: run, at: at} })
}

// onCompletion subscribes to completions; messages published to a stream also reach plain subscribers.
func onCompletion(nc *nats.Conn, f func(run string, at time.Time)) error {
	_, err := nc.Subscribe(wire.EventSubject("run.completed"), func(m *nats.Msg) {
		now := time.Now()
		var event struct {
			Run string `json:"run"`
		}
		if json.Unmarshal(m.Data, &event) == nil {
			f(event.Run, now)
		}
	})
	if err != nil {
		return fmt.Errorf("subscribe to completions: %w", err)
	}
	return nc.Flush()
}

func (b *bed) storeDir() string { return filepath.Join(b.dir, "nats") }

// close ends the processes and removes their data, in any state.
func (b *bed) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	var err error
	if b.nc != nil {
		b.nc.Close()
	}
	for _, c := range slices.Concat(b.others, []*demokit.Child{b.service}, b.nodes, []*demokit.Child{b.node}) {
		if c != nil {
			err = errors.Join(err, c.Stop(ctx))
		}
	}
	if b.dir != "" {
		err = errors.Join(err, os.RemoveAll(b.dir))
	}
	if b.name != "" {
		err = errors.Join(err, b.pg.dropDatabase(ctx, b.name))
	}
	return err
}

func (b *bed) String() string {
	return "every setting at its default, one node, one service with one handler, embedded nats-server " +
		b.nc.ConnectedServerVersion() + " in the node"
}

// A run is abandoned after runBase plus runPerItem for each item: a twentieth of the expected rate.
const (
	runBase    = time.Minute
	runPerItem = 200 * time.Microsecond
)

type started struct {
	Run   string `json:"run"`
	Items int64  `json:"items"`
}

type work struct {
	endpoint, plan string
}

func (w work) query(query url.Values) {
	if w.plan != "" {
		query.Set("plan_ref", w.plan)
		return
	}
	query.Set("endpoint", w.endpoint)
}

// start streams the items to the API as CSV and returns when the run has started.
func (b *bed) start(ctx context.Context, of work, input items) (run started, err error) {
	query := url.Values{"key": {"id"}, "format": {"csv"}}
	of.query(query)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, b.api+"/api/v1/runs?"+query.Encode(), input.csv())
	if err != nil {
		return run, fmt.Errorf("start a run: %w", err)
	}
	req.Header.Set("Content-Type", "text/csv")
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return run, fmt.Errorf("start a run: %w", err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return run, fmt.Errorf("start a run: %w", err)
	}
	if resp.StatusCode != http.StatusCreated {
		return run, fmt.Errorf("start a run: the API answers %s: %s", resp.Status, body)
	}
	if err := json.Unmarshal(body, &run); err != nil {
		return run, fmt.Errorf("start a run: %w", err)
	}
	if run.Items != int64(input.n) {
		return run, fmt.Errorf("start a run: the API took %d items of %d", run.Items, input.n)
	}
	return run, nil
}

// complete runs the items to their end and returns the time of the completion event.
func (b *bed) complete(ctx context.Context, of work, input items) (done finish, err error) {
	ctx, cancel := context.WithTimeout(ctx, runBase+time.Duration(input.n)*runPerItem)
	defer cancel()
	run, err := b.start(ctx, of, input)
	if err != nil {
		return done, err
	}
	loaded := time.Now()
	done, err = b.completion(ctx, run.Run)
	done.loaded = loaded
	return done, err
}

func (b *bed) completion(ctx context.Context, run string) (done finish, err error) {
	for {
		select {
		case done := <-b.finished:
			if done.run == run {
				return done, nil
			}
		case <-b.node.Exited():
			return done, b.node.Failure()
		case <-b.service.Exited():
			return done, b.service.Failure()
		case <-ctx.Done():
			return done, fmt.Errorf("wait for run %s: %w; the logs are in %s", run, ctx.Err(), b.pg.logs)
		}
	}
}

// runProof counts the results of the first steps that equal their item's stored payload, which is what was sent.
const runProof = `SELECT count(*) FROM batchrun r
JOIN work_queue q ON q.run_id = r.id
JOIN work_result p ON p.run_id = q.run_id AND p.ordinal = q.ordinal AND p.step < $2 AND p.generation = 1
WHERE r.id = $1 AND r.state = 'completed' AND r.done = r.items AND r.failed = 0
  AND convert_from(p.result, 'UTF8') = q.payload AND q.payload::jsonb ->> 'id' = q.item_key`

// check asks the database, not the node, whether each of n items has a result of each step.
func (b *bed) check(ctx context.Context, run string, steps, n int) (err error) {
	conn, err := pgx.Connect(ctx, b.database)
	if err != nil {
		return fmt.Errorf("check run %s: %w", run, err)
	}
	defer func() {
		if closeErr := conn.Close(ctx); err == nil {
			err = closeErr
		}
	}()
	var good int
	if err := conn.QueryRow(ctx, runProof, run, steps).Scan(&good); err != nil {
		return fmt.Errorf("check run %s: %w", run, err)
	}
	if good != steps*n {
		return fmt.Errorf("check run %s: %d of %d results are right", run, good, steps*n)
	}
	return nil
}
