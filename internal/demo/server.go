package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tranchehq/tranche/examples/statements"
)

const (
	readyTimeout = 2 * time.Minute
	askEvery     = 100 * time.Millisecond
)

// server is a tranche serve of the demo's own.
type server struct {
	*child
	API  string `json:"api"`
	NATS string `json:"nats"`
}

// startServer starts tranche serve on free ports and returns when it is ready. It prints where it is.
func (sh *shell) startServer(ctx context.Context, database, data, log string) (*server, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("pipe: %w", err)
	}
	cmd := sh.command(context.WithoutCancel(ctx), "--json", "serve",
		"--listen", "127.0.0.1:0", "--nats-listen", "127.0.0.1:0", "--data-dir", data)
	cmd.Env = environment("TRANCHE_DATABASE=" + database)
	cmd.Stdout = w
	c, err := startChild("tranche serve", log, cmd)
	err = errors.Join(err, w.Close())
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	s := &server{child: c}
	ready := make(chan error, 1)
	go func() {
		defer func() { _ = r.Close() }()
		ready <- json.NewDecoder(r).Decode(s)
		_, _ = io.Copy(io.Discard, r) // a closed pipe would kill the server when it has more to say
	}()
	return s, s.await(ctx, ready)
}

func (s *server) await(ctx context.Context, ready <-chan error) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	select {
	case err := <-ready:
		if err == nil {
			return nil
		}
		select { // it closed its output: it is ending
		case <-s.exited:
			return s.failure()
		case <-ctx.Done():
			return fmt.Errorf("understand what tranche serve prints: %w", err)
		}
	case <-ctx.Done():
		return fmt.Errorf("wait for tranche serve (its log: %s): %w", s.log, ctx.Err())
	}
}

// endpointList is what tranche endpoints prints, as far as the demo needs it.
type endpointList struct {
	Endpoints []struct {
		Name      string `json:"name"`
		Listeners []struct {
			Items int64 `json:"items"`
		} `json:"listeners"`
	} `json:"endpoints"`
}

// executed is how many items the service says to have worked on; listening is false when there is no service.
func (sh *shell) executed(ctx context.Context) (items int64, listening bool, err error) {
	var list endpointList
	if err := sh.ask(ctx, &list, "endpoints"); err != nil {
		return 0, false, err
	}
	for _, e := range list.Endpoints {
		if e.Name != statements.Endpoint {
			continue
		}
		for _, l := range e.Listeners {
			items += l.Items
			listening = true
		}
	}
	return items, listening, nil
}

// awaitExecuted asks until the service has counted the items, which it does just after it has answered.
func (sh *shell) awaitExecuted(ctx context.Context, least int64) (int64, error) {
	for range 50 {
		items, listening, err := sh.executed(ctx)
		if err != nil || (listening && items >= least) {
			return items, err
		}
		if err := pause(ctx, askEvery); err != nil {
			return 0, err
		}
	}
	return sh.count(ctx)
}

func (sh *shell) count(ctx context.Context) (int64, error) {
	items, _, err := sh.executed(ctx)
	return items, err
}

// awaitService returns when the service listens, or has ended.
func (sh *shell) awaitService(ctx context.Context, service *child) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for {
		_, listening, err := sh.executed(ctx)
		if err == nil && listening {
			return nil
		}
		select {
		case <-service.exited:
			return service.failure()
		default:
		}
		if err := errors.Join(err, pause(ctx, askEvery)); err != nil {
			return fmt.Errorf("wait for the statement service (its log: %s): %w", service.log, err)
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
