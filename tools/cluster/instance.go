package main

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/tools/demokit"
)

const (
	firstVersion = "1.0.0"
	nextVersion  = "1.1.0"
)

// instance is one of two processes of a service.
type instance struct {
	*demokit.Child
	name, service string
	version       string // that it listened with last
	env           []string
}

// configureServices reads what each service is told.
func (c *cluster) configureServices() error {
	file, err := c.deploy.block("# the environment of the service interest")
	if err != nil {
		return err
	}
	for _, service := range []string{Interest, Letters} {
		for n := range 2 {
			i := &instance{name: fmt.Sprintf("%s-%d", service, n+1), service: service}
			i.env = append(environment(c.place(strings.ReplaceAll(file, Interest, service))),
				ledgerVariable+"="+c.dir.File(ledgers, i.name+".txt"))
			c.services = append(c.services, i)
		}
	}
	return nil
}

func (c *cluster) startInstance(ctx context.Context, i *instance, version string) (err error) {
	cmd := exec.CommandContext(context.WithoutCancel(ctx), c.config.Self, "service", i.service)
	demokit.Gently(cmd)
	cmd.Env, cmd.Dir = demokit.Environment(append(i.env, versionVariable+"="+version)...), filepath.Dir(c.config.Self)
	if i.Child, err = demokit.StartChild(i.name, c.dir.Log(i.name), cmd); err == nil {
		c.story.OnStop(i.Stop)
	}
	return err
}

// listens waits until the service of an instance listens with as many instances of a version as were started.
func (c *cluster) listens(ctx context.Context, last *instance, version string) error {
	last.version = version
	want := 0
	for _, i := range c.services {
		if i.service == last.service && i.version == version {
			want++
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		there, err := c.listeners(ctx, last.endpoint(), version)
		if err != nil || there >= want {
			return err
		}
		select {
		case <-last.Exited():
			return last.Failure()
		default:
		}
		if err := backoff.Sleep(ctx, askEvery); err != nil {
			return fmt.Errorf("wait for %s: %w", last.name, err)
		}
	}
}

// listeners is how many of a version listen, as a node sees it.
func (c *cluster) listeners(ctx context.Context, endpoint, version string) (n int, err error) {
	var list struct {
		Endpoints []struct {
			Name      string `json:"name"`
			Listeners []struct {
				Version string `json:"version"`
				State   string `json:"state"`
			} `json:"listeners"`
		} `json:"endpoints"`
	}
	if err := c.shell.Ask(ctx, &list, "endpoints"); err != nil {
		return 0, err
	}
	for _, e := range list.Endpoints {
		for _, l := range e.Listeners {
			if e.Name == endpoint && l.Version == version && l.State == "listening" {
				n++
			}
		}
	}
	return n, nil
}

// endpoint is what the service of an instance serves.
func (i *instance) endpoint() string {
	if i.service == Interest {
		return "year-end-interest"
	}
	return "letter"
}
