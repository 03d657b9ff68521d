package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/tranchehq/tranche/internal/backoff"
)

const (
	readyTimeout = 2 * time.Minute
	askEvery     = 100 * time.Millisecond
)

// server is a tranche serve of the demo's own.
type server struct {
	*child
	API      string `json:"api"`
	NATS     string `json:"nats"`
	Database string `json:"-"`
}

// startServer starts tranche serve on free ports and returns when it is ready. It prints where it is.
func (sh *shell) startServer(ctx context.Context, database, data, connections, log string) (*server, error) {
	cmd := sh.command(context.WithoutCancel(ctx), "--json", "serve", "--connections", connections,
		"--listen", "127.0.0.1:0", "--nats-listen", "127.0.0.1:0", "--data-dir", data)
	cmd.Env = environment("TRANCHE_DATABASE=" + database)
	s := &server{Database: database}
	c, err := startAnnounced(ctx, "tranche serve", log, cmd, s)
	if c == nil {
		return nil, err
	}
	s.child = c
	return s, err
}

// startAnnounced starts a child that says in JSON on its standard output that it is ready, and waits for that. There is
// a child with an error, too, when it was started.
func startAnnounced(ctx context.Context, name, log string, cmd *exec.Cmd, into any) (*child, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("pipe: %w", err)
	}
	cmd.Stdout = w
	c, err := startChild(name, log, cmd)
	err = errors.Join(err, w.Close())
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	announced := make(chan error, 1)
	go func() {
		defer func() { _ = r.Close() }()
		announced <- json.NewDecoder(r).Decode(into)
		_, _ = io.Copy(io.Discard, r) // a closed pipe would kill the child when it has more to say
	}()
	return c, c.await(ctx, announced)
}

func (c *child) await(ctx context.Context, announced <-chan error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	select {
	case err := <-announced:
		if err == nil {
			return nil
		}
		select { // it closed its output: it is ending
		case <-c.exited:
			return c.failure()
		case <-ctx.Done():
			return fmt.Errorf("understand what %s prints: %w", c.name, err)
		}
	case <-ctx.Done():
		return fmt.Errorf("wait for %s (its log: %s): %w", c.name, c.log, ctx.Err())
	}
}

// endpointList is what tranche endpoints prints, as far as the demo needs it.
type endpointList struct {
	Endpoints []struct {
		Name      string     `json:"name"`
		Listeners []struct{} `json:"listeners"`
	} `json:"endpoints"`
}

// listens reports whether there is a service for the endpoint.
func (sh *shell) listens(ctx context.Context, endpoint string) (bool, error) {
	var list endpointList
	if err := sh.ask(ctx, &list, "endpoints"); err != nil {
		return false, err
	}
	for _, e := range list.Endpoints {
		if e.Name == endpoint && len(e.Listeners) > 0 {
			return true, nil
		}
	}
	return false, nil
}

// awaitService returns when the service listens, or has ended.
func (sh *shell) awaitService(ctx context.Context, service *child, endpoint string) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		listening, err := sh.listens(ctx, endpoint)
		if err == nil && listening {
			return nil
		}
		select {
		case <-service.exited:
			return service.failure()
		default:
		}
		if err := errors.Join(err, backoff.Sleep(ctx, askEvery)); err != nil {
			return fmt.Errorf("wait for %s (its log: %s): %w", service.name, service.log, err)
		}
	}
}
