package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/tools/demokit"
)

// node is a tranche serve.
type node struct {
	*demokit.Child
	name, url string
	env       []string
}

// configureNodes reads what each machine's node is told.
func (c *cluster) configureNodes() error {
	file, err := c.deploy.block("# /etc/tranche/tranche.env")
	if err != nil {
		return err
	}
	for i := range c.nodes {
		machine := i + 1
		n := &node{name: fmt.Sprint("tranche-", machine), url: fmt.Sprintf("http://%s%d:8480", c.net, machine)}
		n.env = demokit.Environment(append(environment(c.own(file, machine)), "TRANCHE_DATA_DIR="+c.dir.Servers(n.name))...)
		c.nodes[i] = n
	}
	return nil
}

// startNode starts a node with a version of the program, and returns when it is ready.
func (c *cluster) startNode(ctx context.Context, n *node, program string) (err error) {
	shell := *c.shell
	shell.Program = program
	cmd := shell.Command(context.WithoutCancel(ctx), "--json", "serve")
	cmd.Env = n.env
	var at struct{}
	child, err := demokit.StartAnnounced(ctx, n.name, c.dir.Log(n.name), cmd, &at)
	if child != nil {
		n.Child = child
		c.story.OnStop(child.Stop)
	}
	return err
}

// makeToken lets us in, as somebody beside a node would.
func (c *cluster) makeToken(ctx context.Context) error {
	block, err := c.deploy.block("tranche token create")
	if err != nil {
		return err
	}
	c.story.Command(strings.TrimSpace(block))
	var made struct {
		Secret string `json:"secret"`
	}
	if err := c.shell.Ask(ctx, &made, commands(c.place(block))[0][1:]...); err != nil {
		return err
	}
	if made.Secret == "" {
		return errors.New("tranche token create tells no token")
	}
	file := c.dir.Servers("token")
	if err := os.WriteFile(file, []byte(made.Secret), 0o600); err != nil {
		return fmt.Errorf("keep the token: %w", err)
	}
	c.shell.Env = append(demokit.Environment(), "TRANCHE_TOKEN_FILE="+file)
	c.askAt(c.nodes[0])
	return nil
}

// askAt has commands ask this node from now on.
func (c *cluster) askAt(n *node) {
	c.shell.Env = append(c.shell.Env, "TRANCHE_URL="+n.url) // the last one counts
}

// nodeList is what tranche nodes prints, as far as it is needed here.
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

// leadership is who leads, a node to ask that does not, and how many requests the leader has out.
type leadership struct {
	leads, other *node
	requests     int64
}

// awaitLeader waits until the node that leads is the right one.
func (c *cluster) awaitLeader(ctx context.Context, right func(leadership) bool) (leadership, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		var list nodeList
		if err := c.shell.Ask(ctx, &list, "nodes"); err != nil {
			return leadership{}, err
		}
		if now := c.leader(&list); now.leads != nil && right(now) {
			return now, nil
		}
		if err := backoff.Sleep(ctx, askEvery); err != nil {
			return leadership{}, fmt.Errorf("wait for a node to lead: %w", err)
		}
	}
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

// versions checks that the nodes that are there are all of the next version.
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
			return fmt.Errorf("a node is of version %s still, and not of %s", n.Version, want)
		}
	}
	if alive != machines {
		return fmt.Errorf("%d nodes are alive; there should be %d", alive, machines)
	}
	return nil
}
