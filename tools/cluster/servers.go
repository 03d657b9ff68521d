package main

import (
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/tools/demokit"
)

const machines = 3

type natsServer struct {
	*demokit.Child
	name, config, monitor string
}

// configureNATS creates the accounts with tranche, and each machine's configuration.
func (c *cluster) configureNATS(ctx context.Context) {
	config := demokit.Must(c.deploy.block("tranche nats config"))
	typed := commands(strings.Replace(config, "--out nats", "--out servers/nats", 1))[0]
	demokit.Stop(c.shell.Typed(ctx, exitOK, typed[1:]...))
	part := demokit.Must(c.deploy.block("# /etc/nats/nats.conf"))
	for i := range c.nats {
		machine := i + 1
		s := &natsServer{name: fmt.Sprint("nats-", machine), monitor: fmt.Sprintf("http://%s%d:8222", c.net, machine)}
		s.config = c.dir.Servers("nats", s.name+".conf")
		store := c.dir.Servers(s.name)
		text := strings.Replace(c.own(part, machine), "/var/lib/nats", store, 1)
		demokit.Stop(os.WriteFile(s.config, []byte(text), 0o600))
		c.nats[i] = s
	}
}

// startServer starts a server without waiting until it is ready.
func (c *cluster) startServer(ctx context.Context, s *natsServer) (err error) {
	cmd := exec.Command(c.settings.nats, "-c", s.config) //nolint:noctx // it outlives the start
	cmd.Env, cmd.Dir = demokit.Environment(), filepath.Dir(s.config)
	s.Child, err = c.story.Start(ctx, s.name, c.dir.Log(s.name), cmd, nil)
	return err
}

func (s *natsServer) awaitHealthy(ctx context.Context) error {
	return demokit.Await(ctx, s.name, s.Child, func(ctx context.Context) error {
		return demokit.Get(ctx, s.monitor+"/healthz", nil)
	})
}

// lameDuck makes a server transfer leadership, disconnect its clients, and end.
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

// leaderOf returns the leader of a stream. A busy machine may have none briefly.
func (c *cluster) leaderOf(ctx context.Context, stream string) (leader *natsServer, err error) {
	err = demokit.Await(ctx, "a leader of "+stream, nil, func(ctx context.Context) (err error) {
		leader, err = c.askLeader(ctx, stream)
		return err
	})
	return leader, err
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
	if err := demokit.Get(ctx, c.nats[0].monitor+"/jsz?accounts=1&streams=1", &said); err != nil {
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

type databases struct {
	mu               sync.Mutex // guards primary, which measurements read concurrently
	primary, standby *embedded.Postgres
	// configs are those of the two machines, the primary's first.
	configs [2]embedded.PostgresConfig
	copies  int
}

// startPostgres starts both and creates the roles and, as its owner, the schema.
func (c *cluster) startPostgres(ctx context.Context) (err error) {
	settings := c.postgresSettings()
	for i := range c.db.configs {
		own := maps.Clone(settings)
		own["listen_addresses"] = fmt.Sprint(c.net, i+1)
		c.db.configs[i] = embedded.PostgresConfig{
			DataDir: c.dir.Servers(fmt.Sprint("postgres-", i+1)), NoRestart: true, Bound: true, Settings: own,
		}
	}
	c.story.OnStop(c.db.stop)
	if c.db.primary, err = embedded.StartPostgres(ctx, c.db.configs[0]); err != nil {
		return fmt.Errorf("start PostgreSQL: %w", err)
	}
	demokit.Stop(c.db.follow(ctx))
	return c.makeRoles(ctx)
}

// postgresSettings returns the settings in the page on PostgreSQL, reduced for small machines.
func (c *cluster) postgresSettings() map[string]string {
	p := demokit.Must(readPage(c.settings.repository, "docs", "operate", "postgresql.md"))
	block := demokit.Must(p.block("# postgresql.conf"))
	all := map[string]string{}
	for _, line := range environment(block) {
		name, value, _ := strings.Cut(comment.ReplaceAllString(line, ""), " = ")
		all[name] = strings.Trim(value, "'")
	}
	all["shared_buffers"], all["synchronous_standby_names"] = "128MB", ""
	return all
}

// follow starts a standby on the second machine and makes commits wait for it.
func (d *databases) follow(ctx context.Context) (err error) {
	if d.standby, err = d.primary.StartStandby(ctx, d.configs[1], d.primary.Conninfo()); err != nil {
		return fmt.Errorf("start the standby: %w", err)
	}
	return d.primary.Synchronous(ctx)
}

func (d *databases) failOver(ctx context.Context) error {
	dead := d.primary
	d.turn(d.standby)
	d.standby = nil
	demokit.Stop(dead.Kill(ctx))
	d.configs[0], d.configs[1] = d.configs[1], d.configs[0]
	d.copies++
	// The copy is made from scratch: the dead server may have written what the standby never received.
	d.configs[1].DataDir += fmt.Sprint("-", d.copies)
	return d.primary.Promote(ctx)
}

// restart restarts the standby and then the primary, like an update of PostgreSQL.
func (d *databases) restart(ctx context.Context) error {
	conninfo := d.primary.Conninfo()
	demokit.Stop(d.standby.Stop(ctx))
	config := d.configs[1]
	config.Settings = maps.Clone(config.Settings)
	config.Settings["primary_conninfo"] = conninfo
	standby, err := embedded.StartPostgres(ctx, config)
	if err != nil {
		return fmt.Errorf("start the standby again: %w", err)
	}
	d.standby = standby
	demokit.Stop(d.primary.Stop(ctx))
	primary, err := embedded.StartPostgres(ctx, d.configs[0])
	if err != nil {
		return fmt.Errorf("start the primary again: %w", err)
	}
	d.turn(primary)
	return nil
}

func (d *databases) url() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.primary.URL()
}

func (d *databases) turn(primary *embedded.Postgres) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.primary = primary
}

func (d *databases) stop(ctx context.Context) error {
	for _, p := range []*embedded.Postgres{d.primary, d.standby} { // the primary's last commits may wait for the standby
		if p != nil {
			if err := p.Stop(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *cluster) makeRoles(ctx context.Context) error {
	security := demokit.Must(readPage(c.settings.repository, "docs", "security.md"))
	roles := demokit.Must(security.block("CREATE ROLE tranche_owner"))
	conn := demokit.Must(pgx.Connect(ctx, c.db.primary.URL()))
	defer func() { _ = conn.Close(ctx) }()
	for _, sql := range strings.SplitAfter(strings.ReplaceAll(roles, "'…'", "'"+c.password+"'"), ";\n") {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return c.typedFrom(ctx, c.deploy, "tranche migrate")
}

// typedFrom runs the page's commands in the block that starts with begin.
func (c *cluster) typedFrom(ctx context.Context, p page, begin string) error {
	block := demokit.Must(p.block(begin))
	for _, words := range commands(c.place(block)) {
		demokit.Stop(c.shell.Typed(ctx, exitOK, words[1:]...))
	}
	return nil
}
