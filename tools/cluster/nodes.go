package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/tranchehq/tranche/tools/demokit"
)

type node struct {
	*demokit.Child
	name, url string
	env       []string
}

func (c *cluster) configureNodes() {
	file := demokit.Must(c.deploy.block("# /etc/tranche/tranche.env"))
	for i := range c.nodes {
		machine := i + 1
		n := &node{name: fmt.Sprint("tranche-", machine), url: fmt.Sprintf("http://%s%d:8480", c.net, machine)}
		n.env = demokit.Environment(append(environment(c.own(file, machine)), "TRANCHE_DATA_DIR="+c.dir.Servers(n.name))...)
		c.nodes[i] = n
	}
}

func (c *cluster) startNode(ctx context.Context, n *node, program string) (err error) {
	shell := *c.shell
	shell.Program = program
	cmd := shell.Command(context.WithoutCancel(ctx), "--json", "serve")
	cmd.Env = n.env
	n.Child, err = c.story.Start(ctx, n.name, c.dir.Log(n.name), cmd, &struct{}{})
	return err
}

// makeToken creates a token for the API, as an administrator on a node would.
func (c *cluster) makeToken(ctx context.Context) error {
	block := demokit.Must(c.deploy.block("tranche token create"))
	c.story.Command(strings.TrimSpace(block))
	var made struct {
		Secret string `json:"secret"`
	}
	demokit.Stop(c.shell.Ask(ctx, &made, commands(c.place(block))[0][1:]...))
	if made.Secret == "" {
		return errors.New("tranche token create printed no token")
	}
	file := c.dir.Servers("token")
	demokit.Stop(os.WriteFile(file, []byte(made.Secret), 0o600))
	c.shell.Env = append(demokit.Environment(), "TRANCHE_TOKEN_FILE="+file)
	c.askAt(c.nodes[0])
	return nil
}

// askAt sends later commands to this node.
func (c *cluster) askAt(n *node) {
	c.shell.Env = append(c.shell.Env, "TRANCHE_URL="+n.url) // the last one counts
}

type nodeList struct {
	Nodes []struct {
		State   string `json:"state"`
		Leader  bool   `json:"leader"`
		PID     int    `json:"pid"`
		Version string `json:"version"`
		Slices  struct {
			Claimed int64 `json:"claimed"`
			Sent    int64 `json:"sent"`
		} `json:"slices"`
	} `json:"nodes"`
}

// leadership is the leader, another node, and the leader's requests in flight.
type leadership struct {
	leads, other *node
	requests     int64
}

// awaitLeader waits until leadership satisfies right.
func (c *cluster) awaitLeader(ctx context.Context, right func(leadership) bool) (now leadership, err error) {
	err = demokit.Await(ctx, "a node to lead", nil, func(ctx context.Context) error {
		var list nodeList
		if err := c.shell.Ask(ctx, &list, "nodes"); err != nil {
			return err
		}
		if now = c.leader(&list); now.leads == nil || !right(now) {
			return errors.New("no node leads yet")
		}
		return nil
	})
	return now, err
}

func (c *cluster) leader(list *nodeList) (now leadership) {
	for _, found := range list.Nodes {
		for i, n := range c.nodes {
			if found.Leader && found.PID == n.PID() {
				now = leadership{n, c.nodes[(i+1)%machines], found.Slices.Claimed + found.Slices.Sent}
			}
		}
	}
	return now
}

// versions checks that all running nodes have the wanted version.
func (c *cluster) versions(ctx context.Context, want string) error {
	var list nodeList
	if err := c.shell.Ask(ctx, &list, "nodes"); err != nil {
		return err
	}
	alive := 0
	for _, n := range list.Nodes {
		if n.State == "dead" || n.State == "ended" {
			continue
		}
		if alive++; !strings.HasPrefix(n.Version, want) {
			return fmt.Errorf("a node still has version %s, not %s", n.Version, want)
		}
	}
	if alive != machines {
		return fmt.Errorf("%d nodes are alive, not %d", alive, machines)
	}
	return nil
}

const (
	firstVersion = "1.0.0"
	nextVersion  = "1.1.0"
)

type instance struct {
	*demokit.Child
	name, service string
	version       string // last started with
	env           []string
}

func (c *cluster) configureServices() {
	file := demokit.Must(c.deploy.block("# the environment of the service interest"))
	for _, service := range []string{interestService, lettersService} {
		for n := range 2 {
			i := &instance{name: fmt.Sprintf("%s-%d", service, n+1), service: service}
			i.env = append(environment(c.place(strings.ReplaceAll(file, interestService, service))),
				ledgerVariable+"="+c.dir.File(ledgers, i.name+".txt"))
			c.services = append(c.services, i)
		}
	}
}

func (c *cluster) startInstance(ctx context.Context, i *instance, version string) (err error) {
	cmd := exec.CommandContext(context.WithoutCancel(ctx), c.settings.self, "service", i.service)
	demokit.Gently(cmd)
	cmd.Env, cmd.Dir = demokit.Environment(append(i.env, versionVariable+"="+version)...), filepath.Dir(c.settings.self)
	i.Child, err = c.story.Start(ctx, i.name, c.dir.Log(i.name), cmd, nil)
	return err
}

// listens waits until the service listens with all started instances of a version.
func (c *cluster) listens(ctx context.Context, last *instance, version string) error {
	last.version = version
	want := 0
	for _, i := range c.services {
		if i.service == last.service && i.version == version {
			want++
		}
	}
	return c.shell.AwaitService(ctx, last.Child, last.endpoint(), version, want)
}

func (i *instance) endpoint() string {
	if i.service == interestService {
		return "year-end-interest"
	}
	return "letter"
}
