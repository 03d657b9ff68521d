package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
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
