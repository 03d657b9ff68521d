package main

import (
	"bytes"
	"cmp"
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
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/embedded"
)

const (
	readyTimeout = 30 * time.Second
	// bedWarmItems go through a fresh node and service first, so that statements are prepared and buffers have grown,
	// as in a server that has been up for a while.
	bedWarmItems = 20_000
)

// bed is a node and an echo service, each a process of its own, on a database of their own.
type bed struct {
	pg       *cluster
	name     string // of the database
	database string // its URL
	program  string // tranche
	dir      string // the node's data directory
	api      string
	node     *child
	service  *child
	others   []*child // further services, and nodes
	nodes    []*child // of these, the nodes
	nc       *nats.Conn
	finished chan finish
}

// finish is a completion event and when it reached us.
type finish struct {
	run    string
	loaded time.Time // when the API had answered the start
	at     time.Time
}

// checkProgram fails before the clock starts rather than minutes later.
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

// openBed starts everything with the settings that it has by default, and sends a first run through it.
func openBed(ctx context.Context, cfg config, pg *cluster) (b *bed, err error) {
	if b, err = openNode(ctx, cfg, pg); err != nil {
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

// openNode starts a node with the settings that it has by default, and no service.
func openNode(ctx context.Context, cfg config, pg *cluster) (b *bed, err error) {
	b = &bed{pg: pg, program: cfg.binary, finished: make(chan finish, 16)}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.close())
		}
	}()
	if b.name, b.database, err = pg.freshDatabase(ctx, cmp.Or(cfg.bed, "tranche")); err != nil {
		return b, err
	}
	if b.dir, err = os.MkdirTemp(pg.dir, "node-"); err != nil {
		return b, fmt.Errorf("make a directory for the node: %w", err)
	}
	if err := b.startNode(ctx, cfg.binary); err != nil {
		return b, err
	}
	return b, b.subscribe()
}

// welcome is what serve prints once it is ready.
type welcome struct {
	API  string `json:"api"`
	NATS string `json:"nats"`
}

func (b *bed) startNode(ctx context.Context, program string) (err error) {
	args := []string{"serve", "--json", "--database", b.database, "--data-dir", b.dir, "--listen", "127.0.0.1:0",
		"--nats-listen", "127.0.0.1:0", "--log-level", "warn"}
	var w welcome
	if b.node, err = startReady(ctx, "tranche serve", &w, program, args...); err != nil {
		return err
	}
	b.api = w.API
	login, err := os.ReadFile(filepath.Join(b.dir, wire.NATSURLName)) // with the password of the private server
	if err != nil {
		return fmt.Errorf("read where the node's NATS is: %w", err)
	}
	if b.nc, err = nats.Connect(strings.TrimSpace(string(login))); err != nil {
		return fmt.Errorf("connect to the node's NATS at %s: %w", w.NATS, err)
	}
	return nil
}

// startReady starts a program that prints a JSON document once it is ready, and reads that. The child is there, too,
// when it has not come to that.
func startReady(ctx context.Context, name string, into any, program string, args ...string) (*child, error) {
	out := &firstDocument{ready: make(chan struct{})}
	c, err := startChild(name, out, program, args...)
	if err != nil {
		return nil, err
	}
	timed, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	select {
	case <-out.ready:
	case <-c.exited:
		return c, c.ended()
	case <-timed.Done():
		return c, fmt.Errorf("wait for %s to be ready: %w; it said:\n%s", name, timed.Err(), c.said.String())
	}
	if err := json.Unmarshal(out.text(), into); err != nil {
		return c, fmt.Errorf("understand what %s says: %w", name, err)
	}
	return c, nil
}

func (b *bed) startService() (err error) {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	b.service, err = startChild("the echo service", nil, self, echoArgument, b.nc.ConnectedUrl())
	return err
}

func (b *bed) subscribe() error {
	return onCompletion(b.nc, func(run string, at time.Time) { b.finished <- finish{run: run, at: at} })
}

// onCompletion listens to completions as any client can: what is published to a stream reaches plain subscribers too.
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

// storeDir is where the node's NATS server keeps its streams.
func (b *bed) storeDir() string { return filepath.Join(b.dir, "nats") }

// close ends the processes and removes what they left, whatever state they are in.
func (b *bed) close() error {
	var err error
	if b.nc != nil {
		b.nc.Close()
	}
	for _, c := range append(b.others, b.service, b.node) {
		if c != nil {
			err = errors.Join(err, c.stop())
		}
	}
	if b.dir != "" {
		err = errors.Join(err, os.RemoveAll(b.dir))
	}
	if b.name != "" {
		err = errors.Join(err, b.pg.dropDatabase(context.Background(), b.name))
	}
	return err
}

func (b *bed) String() string {
	return "every setting at its default, one node, one service with one handler, embedded nats-server " +
		b.nc.ConnectedServerVersion() + " in the node"
}

// firstDocument keeps what is written to it and tells when it is a whole JSON document.
type firstDocument struct {
	mu    sync.Mutex
	buf   strings.Builder
	ready chan struct{}
	told  bool
}

func (d *firstDocument) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.told {
		return len(p), nil
	}
	d.buf.Write(p)
	if json.Valid([]byte(d.buf.String())) {
		d.told = true
		close(d.ready)
	}
	return len(p), nil
}

func (d *firstDocument) text() []byte {
	d.mu.Lock()
	defer d.mu.Unlock()
	return []byte(d.buf.String())
}

// A run is given up after runBase and runPerItem for each item, which is a twentieth of the rate to expect.
const (
	runBase    = time.Minute
	runPerItem = 200 * time.Microsecond
)

// started is the API's answer to a start.
type started struct {
	Run   string `json:"run"`
	Items int64  `json:"items"`
}

// work is what a run does: that of an endpoint, or of a plan on record.
type work struct {
	endpoint, plan string
	chunk, flight  int // requests of so many items, so many at once; 0: as it is by itself
}

func (w work) query(query url.Values) {
	if w.plan != "" {
		query.Set("plan_ref", w.plan)
		return
	}
	query.Set("endpoint", w.endpoint)
	if w.chunk > 0 {
		query.Set("chunk", strconv.Itoa(w.chunk))
	}
	if w.flight > 0 {
		query.Set("in_flight", strconv.Itoa(w.flight))
	}
}

// start streams the items to the API as CSV and returns when the run is under way.
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

// complete runs the items to their end and returns the run and when the completion event came.
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

// completion waits for the event of a run that completes.
func (b *bed) completion(ctx context.Context, run string) (done finish, err error) {
	for {
		select {
		case done := <-b.finished:
			if done.run == run {
				return done, nil
			}
		case <-b.node.exited:
			return done, b.node.ended()
		case <-b.service.exited:
			return done, b.service.ended()
		case <-ctx.Done():
			return done, fmt.Errorf("wait for run %s: %w; the node said:\n%s", run, ctx.Err(), b.node.said.String())
		}
	}
}

// runProof counts the parts of the first steps that equal the stored payload of their item, which is what was sent, as
// far as SQL can tell.
const runProof = `SELECT count(*) FROM batchrun r
JOIN work_queue q ON q.run_id = r.id
JOIN work_part p ON p.run_id = q.run_id AND p.ordinal = q.ordinal AND p.step < $2 AND p.generation = 1
WHERE r.id = $1 AND r.state = 'completed' AND r.done = r.items AND r.failed = 0
  AND convert_from(p.result, 'UTF8') = q.payload AND q.payload::jsonb ->> 'id' = q.item_key`

// check asks the database, not the node, whether the run is right.
func (b *bed) check(ctx context.Context, run string, n int) error {
	return b.checkParts(ctx, run, 1, n)
}

// checkParts asks whether each of n items has its parts of so many steps.
func (b *bed) checkParts(ctx context.Context, run string, steps, n int) (err error) {
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

// maxSaid is how much of what a child wrote an error shows.
const maxSaid = 4 << 10

// child is a process that we started. It is in a group of its own, so that a Ctrl-C at the terminal leaves the order in
// which children end to us, and on Linux it dies with us.
type child struct {
	name   string
	cmd    *exec.Cmd
	said   lastBytes
	exited chan struct{} // closed when it has ended, with err set
	err    error
}

// startChild starts a program. Its output goes to out, what it says on standard error is kept for errors.
func startChild(name string, out io.Writer, program string, args ...string) (*child, error) {
	c := &child{name: name, cmd: exec.Command(program, args...), exited: make(chan struct{})}
	c.cmd.Env, c.cmd.Stdout, c.cmd.Stderr = plainEnv(os.Environ()), out, &c.said
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	embedded.DieWithParent(c.cmd.SysProcAttr, syscall.SIGKILL)
	err := embedded.StartChild(c.cmd, func(err error) {
		c.err = err
		close(c.exited)
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return c, nil
}

// plainEnv leaves out the settings of Tranche and NATS that a person may have set: they would change what is measured.
func plainEnv(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		return strings.HasPrefix(v, "TRANCHE_") || strings.HasPrefix(v, "NATS_")
	})
}

func (c *child) pid() int { return c.cmd.Process.Pid }

// ended says why the child, which should be running, is not.
func (c *child) ended() error {
	return fmt.Errorf("%s ended: %w; it said:\n%s", c.name, orExit(c.err), c.said.String())
}

func orExit(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// stop asks the child to end, and kills it when it does not.
func (c *child) stop() error {
	_ = c.cmd.Process.Signal(syscall.SIGTERM) // it may have ended, which is as good
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-c.exited:
		return nil
	case <-timer.C:
	}
	_ = c.cmd.Process.Kill() // as above
	<-c.exited
	return fmt.Errorf("stop %s (pid %d): it did not end within %s and was killed", c.name, c.pid(), stopTimeout)
}

// lastBytes keeps the end of what is written to it.
type lastBytes struct {
	mu  sync.Mutex
	buf []byte
}

func (l *lastBytes) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.buf = append(l.buf, p...)
	if over := len(l.buf) - maxSaid; over > 0 {
		l.buf = append(l.buf[:0], l.buf[over:]...)
	}
	return len(p), nil
}

func (l *lastBytes) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return string(bytes.TrimSpace(l.buf))
}
