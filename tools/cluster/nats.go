package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/tools/demokit"
)

const (
	machines = 3
	// startTimeout bounds what is waited for when a server starts.
	startTimeout = 90 * time.Second
	askEvery     = 100 * time.Millisecond
)

// natsServer is one of the three.
type natsServer struct {
	*demokit.Child
	name, config, monitor string
}

// configureNATS has tranche write the accounts, and each machine its own part.
func (c *cluster) configureNATS(ctx context.Context) error {
	config, err := c.deploy.block("tranche nats config")
	if err != nil {
		return err
	}
	typed := commands(strings.Replace(config, "--out nats", "--out servers/nats", 1))[0]
	if err := c.shell.Typed(ctx, exitOK, typed[1:]...); err != nil {
		return err
	}
	part, err := c.deploy.block("# /etc/nats/nats.conf")
	if err != nil {
		return err
	}
	for i := range c.nats {
		machine := i + 1
		s := &natsServer{name: fmt.Sprint("nats-", machine), monitor: fmt.Sprintf("http://%s%d:8222", c.net, machine)}
		s.config = c.dir.Servers("nats", s.name+".conf")
		store := c.dir.Servers(s.name)
		text := strings.Replace(c.own(part, machine), "/var/lib/nats", store, 1)
		if err := os.WriteFile(s.config, []byte(text), 0o600); err != nil {
			return fmt.Errorf("configure %s: %w", s.name, err)
		}
		c.nats[i] = s
	}
	return nil
}

func (c *cluster) startNATS(ctx context.Context) error {
	for _, s := range c.nats {
		if err := c.startServer(s); err != nil {
			return err
		}
	}
	for _, s := range c.nats {
		if err := s.awaitHealthy(ctx); err != nil {
			return err
		}
	}
	return nil
}

// startServer returns before the server is ready.
func (c *cluster) startServer(s *natsServer) (err error) {
	cmd := exec.Command(c.config.NATS, "-c", s.config) //nolint:noctx // it outlives the start
	cmd.Env, cmd.Dir = demokit.Environment(), filepath.Dir(s.config)
	if s.Child, err = demokit.StartChild(s.name, c.dir.Log(s.name), cmd); err == nil {
		c.story.OnStop(s.Stop)
	}
	return err
}

// awaitHealthy waits until the server has what it should have.
func (s *natsServer) awaitHealthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		if ask(ctx, s.monitor+"/healthz", nil) == nil {
			return nil
		}
		select {
		case <-s.Exited():
			return s.Failure()
		default:
		}
		if err := backoff.Sleep(ctx, askEvery); err != nil {
			return fmt.Errorf("wait for %s: %w", s.name, err)
		}
	}
}

// lameDuck has a server hand over what it leads, send its clients away, and end.
func (s *natsServer) lameDuck(ctx context.Context) error {
	if err := syscall.Kill(s.PID(), syscall.SIGUSR2); err != nil {
		return fmt.Errorf("restart %s: %w", s.name, err)
	}
	select {
	case <-s.Exited():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// leaderOf returns the server that leads a stream. On a busy machine there may be none for a moment.
func (c *cluster) leaderOf(ctx context.Context, stream string) (*natsServer, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		leader, err := c.askLeader(ctx, stream)
		if err == nil {
			return leader, nil
		}
		if late := backoff.Sleep(ctx, askEvery); late != nil {
			return nil, errors.Join(err, late)
		}
	}
}

func (c *cluster) askLeader(ctx context.Context, stream string) (*natsServer, error) {
	var said struct {
		Accounts []struct {
			Streams []struct {
				Name    string `json:"name"`
				Cluster struct {
					Leader string `json:"leader"`
				} `json:"cluster"`
			} `json:"stream_detail"`
		} `json:"account_details"`
	}
	if err := ask(ctx, c.nats[0].monitor+"/jsz?accounts=1&streams=1", &said); err != nil {
		return nil, err
	}
	for _, account := range said.Accounts {
		for _, found := range account.Streams {
			for _, s := range c.nats {
				if found.Name == stream && found.Cluster.Leader == s.name {
					return s, nil
				}
			}
		}
	}
	return nil, fmt.Errorf("no server leads %s", stream)
}

// ask gets a page of a server, which must be well.
func ask(ctx context.Context, url string, into any) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answers %s", url, answer.Status)
	}
	if into == nil {
		return nil
	}
	return json.NewDecoder(answer.Body).Decode(into)
}
