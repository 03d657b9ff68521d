package main

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/embedded"
)

// databases is the primary and its synchronous standby.
type databases struct {
	mu               sync.Mutex // guards primary, which is also looked at by who measures
	primary, standby *embedded.Postgres
	// configs are those of the two machines; the first is the primary's.
	configs [2]embedded.PostgresConfig
	copies  int
}

// startPostgres starts both, makes the roles and has the schema made by its owner.
func (c *cluster) startPostgres(ctx context.Context) (err error) {
	settings, err := c.settings()
	if err != nil {
		return err
	}
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
	if err := c.db.follow(ctx); err != nil {
		return err
	}
	return c.makeRoles(ctx)
}

// settings are those of the page about PostgreSQL, without what only large machines have.
func (c *cluster) settings() (map[string]string, error) {
	p, err := readPage(c.config.Repository, "docs", "operate", "postgresql.md")
	if err != nil {
		return nil, err
	}
	block, err := p.block("# postgresql.conf")
	if err != nil {
		return nil, err
	}
	all := map[string]string{}
	for _, line := range environment(block) {
		name, value, _ := strings.Cut(comment.ReplaceAllString(line, ""), " = ")
		all[name] = strings.Trim(value, "'")
	}
	all["shared_buffers"], all["synchronous_standby_names"] = "128MB", ""
	return all, nil
}

// follow makes a standby of the primary on the second machine, and has commits wait for it.
func (d *databases) follow(ctx context.Context) (err error) {
	if d.standby, err = d.primary.StartStandby(ctx, d.configs[1], d.primary.Conninfo()); err != nil {
		return fmt.Errorf("start the standby: %w", err)
	}
	return d.primary.Synchronous(ctx)
}

// failOver kills the primary and promotes the standby.
func (d *databases) failOver(ctx context.Context) error {
	dead := d.primary
	d.turn(d.standby)
	d.standby = nil
	if err := dead.Kill(ctx); err != nil {
		return err
	}
	d.configs[0], d.configs[1] = d.configs[1], d.configs[0]
	d.copies++
	// A copy is made anew, since the dead one may have written what the standby never had.
	d.configs[1].DataDir += fmt.Sprint("-", d.copies)
	return d.primary.Promote(ctx)
}

// restart ends and starts the standby, and then the primary, as an update of PostgreSQL does.
func (d *databases) restart(ctx context.Context) error {
	conninfo := d.primary.Conninfo()
	if err := d.standby.Stop(ctx); err != nil {
		return err
	}
	config := d.configs[1]
	config.Settings = maps.Clone(config.Settings)
	config.Settings["primary_conninfo"] = conninfo
	standby, err := embedded.StartPostgres(ctx, config)
	if err != nil {
		return fmt.Errorf("start the standby again: %w", err)
	}
	d.standby = standby
	if err := d.primary.Stop(ctx); err != nil {
		return err
	}
	primary, err := embedded.StartPostgres(ctx, d.configs[0])
	if err != nil {
		return fmt.Errorf("start the primary again: %w", err)
	}
	d.turn(primary)
	return nil
}

// url leads to the primary.
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
	security, err := readPage(c.config.Repository, "docs", "security.md")
	if err != nil {
		return err
	}
	roles, err := security.block("CREATE ROLE tranche_owner")
	if err != nil {
		return err
	}
	conn, err := pgx.Connect(ctx, c.db.primary.URL())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(ctx) }()
	for _, sql := range strings.SplitAfter(strings.ReplaceAll(roles, "'…'", "'"+c.password+"'"), ";\n") {
		if _, err := conn.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return c.typedFrom(ctx, c.deploy, "tranche migrate")
}

// typedFrom types the command of a page that begins so.
func (c *cluster) typedFrom(ctx context.Context, p page, begin string) error {
	block, err := p.block(begin)
	if err != nil {
		return err
	}
	for _, words := range commands(c.place(block)) {
		if err := c.shell.Typed(ctx, exitOK, words[1:]...); err != nil {
			return err
		}
	}
	return nil
}
