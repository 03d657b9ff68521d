package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tranchehq/tranche/internal/demo/bankdata"
	"github.com/tranchehq/tranche/internal/embedded"
)

// stopTimeout bounds the end of the demo.
const stopTimeout = time.Minute

const runName = "year-end"

// demo is a demo under way.
type demo struct {
	config   Config
	story    *story
	dir      *workDir
	postgres *embedded.Postgres
	bank     *bankdata.Bank
	shell    *shell
	server   *server
	branches string // URL
	damage   *bankdata.Damage
	again    []check // what was done again, by the ledgers
	undo     []func(context.Context) error
	began    time.Time
}

// Run tells the whole story and returns nil when everything was equal in the end. When ctx ends it stops everything
// and returns the context's error.
func Run(ctx context.Context, config Config) (err error) {
	config, err = config.withDefaults()
	if err != nil {
		return err
	}
	story := &story{out: config.Out, color: config.Color, live: isTerminal(config.Out)}
	d := &demo{config: config, began: time.Now(), story: story}
	defer func() {
		if ctx.Err() != nil && err != nil { // what that broke is of no interest
			err = ctx.Err()
		}
		err = errors.Join(err, d.stop(ctx))
	}()
	for _, chapter := range []func(context.Context) error{
		d.open, d.makeBank, d.startProcesses, d.applyPlan, d.refuseFile, d.runAll, d.correctForms, d.rerunFailed,
		d.redoFifty, d.send, d.prove, d.end,
	} {
		if err := chapter(ctx); err != nil {
			return err
		}
		if d.story.err != nil {
			return fmt.Errorf("write to standard output: %w", d.story.err)
		}
	}
	return nil
}

// stop ends everything in the opposite order of its start. It has its own time: ctx may have ended.
func (d *demo) stop(ctx context.Context) (err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	for _, undo := range slices.Backward(d.undo) {
		err = errors.Join(err, undo(ctx))
	}
	return err
}

func (d *demo) onStop(undo func(context.Context) error) { d.undo = append(d.undo, undo) }

func (d *demo) open(ctx context.Context) (err error) {
	if d.dir, err = openDir(d.config.Dir, d.config.now()); err != nil {
		return err
	}
	d.onStop(func(context.Context) error { return d.dir.close() })
	d.story.title("Tranche demo: the year-end statements of a small bank")
	d.postgres, err = embedded.StartPostgres(ctx, embedded.PostgresConfig{
		DataDir: d.dir.file(serversDir, "postgres"), Bound: true,
	})
	var access *embedded.AccessError
	switch {
	case errors.As(err, &access):
		return fmt.Errorf("user %s, whom PostgreSQL runs as, cannot work in %s; choose another directory with --dir",
			access.User, access.At)
	case err != nil:
		return fmt.Errorf("start a private PostgreSQL: %w", err)
	}
	d.onStop(d.postgres.Stop)
	for _, database := range bankdata.Databases() {
		if err := d.postgres.CreateDatabase(ctx, database); err != nil {
			return err
		}
	}
	d.bank = bankdata.New(bankdata.Config{
		URL: d.postgres.URLFor, Programs: d.postgres.BinDir(), Environment: environment(), Accounts: d.config.Accounts,
	})
	d.shell = &shell{
		program: d.config.Program, dir: d.dir.path, env: environment(),
		out: d.config.Out, err: d.config.Err, story: d.story,
	}
	return nil
}
