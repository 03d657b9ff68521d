package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/backoff"
	"github.com/tranchehq/tranche/tools/demokit"
)

type fault struct {
	what       string
	done       int64 // outcomes recorded before it
	standstill time.Duration
}

// duringRun acts during the run and returns when the run is steady again.
func (c *cluster) duringRun(ctx context.Context, what string, act func(context.Context) error) error {
	if err := c.progress.settle(ctx, lively); err != nil {
		return fmt.Errorf("before %s: %w", what, err)
	}
	done, _ := c.progress.now()
	c.progress.mu.Lock()
	c.progress.longest = 0
	c.progress.mu.Unlock()
	if err := demokit.Try(func() { demokit.Stop(act(ctx)) }); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	if err := c.progress.settle(ctx, steady); err != nil {
		return fmt.Errorf("after %s: %w", what, err)
	}
	_, standstill := c.progress.now()
	c.faults = append(c.faults, fault{what, done, standstill})
	c.story.Say("%s of %s outcomes were recorded when it happened; the longest standstill was %.1f s.",
		demokit.Grouped(done), demokit.Grouped(c.progress.all), standstill.Seconds())
	return nil
}

func (c *cluster) killNATS(ctx context.Context) error {
	dead := demokit.Must(c.leaderOf(ctx, "TRANCHE_WORK"))
	c.story.Chapter("A NATS server dies: " + dead.name + ", which leads the stream of requests")
	c.story.Command(fmt.Sprintf("kill -9 %d", dead.PID()))
	demokit.Stop(c.duringRun(ctx, dead.name+" killed", func(context.Context) error { return dead.Kill() }))
	c.story.Say("The other two have elected leaders. It is restarted, and catches up.")
	demokit.Stop(c.startServer(ctx, dead))
	return dead.awaitHealthy(ctx)
}

func (c *cluster) killPrimary(ctx context.Context) error {
	c.story.Chapter("The PostgreSQL primary dies, and its synchronous standby is promoted")
	c.story.Command(fmt.Sprintf("kill -9 %d     # and all its processes", c.db.primary.PID()), "pg_ctl promote")
	demokit.Stop(c.duringRun(ctx, "primary killed, standby promoted", c.db.failOver))
	c.story.Say("Nodes found it by their URL. The dead one becomes the standby of the new one, and commits wait for it.")
	return c.db.follow(ctx)
}

func (c *cluster) killNode(ctx context.Context) error {
	now := demokit.Must(c.awaitLeader(ctx, func(now leadership) bool { return now.requests > 0 }))
	dead := now.leads
	c.story.Chapter(fmt.Sprintf("A node dies: %s, the leader, with %d requests in flight", dead.name, now.requests))
	c.story.Command(fmt.Sprintf("kill -9 %d", dead.PID()))
	c.askAt(now.other)
	demokit.Stop(c.duringRun(ctx, dead.name+" killed, the leader", func(ctx context.Context) error {
		err := dead.Kill()
		if err == nil {
			now, err = c.awaitLeader(ctx, func(now leadership) bool { return now.leads != dead })
		}
		return err
	}))
	c.story.Say("%s leads now, and the others have the dead one's work. It is restarted.", now.leads.name)
	return c.startNode(ctx, dead, c.settings.tranche)
}

func (c *cluster) killService(ctx context.Context) error {
	dead := c.services[0]
	c.story.Chapter("A service dies: " + dead.name + ", one of two instances")
	c.story.Command(fmt.Sprintf("kill -9 %d", dead.PID()))
	demokit.Stop(c.duringRun(ctx, dead.name+" killed", func(context.Context) error { return dead.Kill() }))
	c.story.Say("Its requests are handed to the other one when their time is up. It is started again.")
	return c.startInstance(ctx, dead, firstVersion)
}

func (c *cluster) upgrade(ctx context.Context) error {
	c.story.Chapter("Everything is restarted, one by one, nodes and services in their next version")
	for _, part := range []struct {
		what string
		act  func(context.Context) error
	}{
		{"three NATS servers restarted", c.restartNATS},
		{"standby and primary restarted", c.db.restart},
		{"three nodes of the next version", c.replaceNodes},
		{"four instances of the next version", c.replaceServices},
	} {
		began := time.Now()
		demokit.Stop(c.duringRun(ctx, part.what, part.act))
		c.story.Fact(part.what, time.Since(began), 0)
	}
	var next struct {
		Version string `json:"version"`
	}
	shell := *c.shell
	shell.Program = c.settings.next
	demokit.Stop(shell.Ask(ctx, &next, "version"))
	demokit.Stop(c.versions(ctx, next.Version))
	c.shell.Program = c.settings.next
	return c.shell.Typed(ctx, exitOK, "nodes")
}

func (c *cluster) restartNATS(ctx context.Context) error {
	for _, s := range c.nats {
		c.story.Command(fmt.Sprintf("nats-server --signal ldm=%d", s.PID()), "nats-server -c "+s.name+".conf")
		demokit.Stop(s.lameDuck(ctx))
		demokit.Stop(c.startServer(ctx, s))
		demokit.Stop(s.awaitHealthy(ctx))
	}
	return nil
}

func (c *cluster) replaceNodes(ctx context.Context) error {
	c.shell.Program = c.settings.next
	demokit.Stop(c.typedFrom(ctx, c.deploy, "tranche migrate"))
	for i, n := range c.nodes {
		c.story.Command("systemctl restart tranche     # " + n.name)
		c.askAt(c.nodes[(i+1)%machines])
		demokit.Stop(n.Stop(ctx))
		demokit.Stop(c.startNode(ctx, n, c.settings.next))
	}
	return nil
}

func (c *cluster) replaceServices(ctx context.Context) error {
	for _, i := range c.services {
		demokit.Stop(i.Stop(ctx))
		demokit.Stop(c.startInstance(ctx, i, nextVersion))
		demokit.Stop(c.listens(ctx, i, nextVersion))
	}
	return nil
}

const (
	lookEvery = 50 * time.Millisecond
	// steady is for how many seconds outcomes must keep arriving before a fault counts as over.
	steady = 3
	// lively is the same before a fault.
	lively = 1
	// settleTimeout bounds the cost of a fault, with a margin.
	settleTimeout = 2 * time.Minute
)

// outcomes counts the run's recorded outcomes at both steps.
const outcomes = `SELECT coalesce(sum(bit_count(done | failed)), 0) FROM tranche.work_block`

type progress struct {
	all     int64 // at the end of the run
	mu      sync.Mutex
	count   int64
	at      time.Time // of the last increase
	longest time.Duration
}

// watch polls until ctx ends. A database that does not answer counts as a standstill.
func (p *progress) watch(ctx context.Context, url func() string) {
	var conn *pgx.Conn
	for ctx.Err() == nil {
		var count int64
		look, cancel := context.WithTimeout(ctx, time.Second)
		var err error
		if conn == nil {
			conn, err = pgx.Connect(look, url())
		}
		if err == nil {
			err = conn.QueryRow(look, outcomes).Scan(&count)
		}
		cancel()
		switch {
		case err == nil:
			p.saw(count)
		case conn != nil:
			_ = conn.Close(context.WithoutCancel(ctx)) // no longer usable
			conn = nil
		}
		_ = backoff.Sleep(ctx, lookEvery)
	}
	if conn != nil {
		_ = conn.Close(context.WithoutCancel(ctx))
	}
}

func (p *progress) saw(count int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if count <= p.count {
		return
	}
	now := time.Now()
	if !p.at.IsZero() {
		p.longest = max(p.longest, now.Sub(p.at))
	}
	p.count, p.at = count, now
}

func (p *progress) now() (count int64, longest time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.count, p.longest
}

// errOver means that the run ended before all faults were injected.
var errOver = errors.New("the run ended before this fault, which proves nothing; use more --items")

// settle waits until outcomes have arrived in this many seconds.
func (p *progress) settle(ctx context.Context, steady int) error {
	ctx, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	before, _ := p.now()
	for seconds := 0; seconds < steady; {
		if err := backoff.Sleep(ctx, time.Second); err != nil {
			return fmt.Errorf("wait for the run to continue: %w", err)
		}
		count, _ := p.now()
		if count >= p.all {
			return errOver
		}
		if seconds++; count == before {
			seconds = 0
		}
		before = count
	}
	return nil
}
