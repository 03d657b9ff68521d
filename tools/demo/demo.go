package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/tools/demo/bankdata"
	"github.com/tranchehq/tranche/tools/demokit"
)

const runName = "year-end"

// What is left in the directory, beside the files of the chapters.
const (
	statementsFile = "statements.ndjson"
	pdfsDir        = "pdfs"
)

// Exit codes of tranche that the demo expects.
const (
	exitOK      = 0
	exitRefused = 1 // the input is refused
	exitFailed  = 3 // the run has failed items
	exitHeld    = 4 // the run waits for somebody
)

// demo is a demo under way.
type demo struct {
	config   Config
	story    *demokit.Story
	dir      *demokit.Dir
	postgres *embedded.Postgres
	bank     *bankdata.Bank
	shell    *demokit.Shell
	server   *server
	branches string // URL
	damage   *bankdata.Damage
	again    []demokit.Check // what was done again, by the ledgers
	began    time.Time
}

// Run tells the whole story and returns nil when everything was equal in the end. When ctx ends it stops everything
// and returns the context's error.
func Run(ctx context.Context, config Config) (err error) {
	config, err = config.withDefaults()
	if err != nil {
		return err
	}
	d := &demo{config: config, began: time.Now(), story: demokit.New(config.Out, config.Color)}
	return d.story.Tell(ctx,
		d.open, d.makeBank, d.startProcesses, d.applyPlan, d.refuseFile, d.runAll, d.correctForms, d.rerunFailed,
		d.redoFifty, d.send, d.prove, d.end,
	)
}

func (d *demo) open(ctx context.Context) (err error) {
	if d.dir, err = demokit.OpenDir(d.config.Dir, "demo", d.config.now(),
		statementsFile, pdfsDir, planFile, connectionsFile, fiftyFile); err != nil {
		return err
	}
	d.story.OnStop(func(context.Context) error { return d.dir.Close() })
	d.story.Title("Tranche demo: the year-end statements of a small bank")
	d.postgres, err = embedded.StartPostgres(ctx, embedded.PostgresConfig{
		DataDir: d.dir.Servers("postgres"), Bound: true,
	})
	var access *embedded.AccessError
	switch {
	case errors.As(err, &access):
		return fmt.Errorf("user %s, whom PostgreSQL runs as, cannot work in %s; choose another directory with --dir",
			access.User, access.At)
	case err != nil:
		return fmt.Errorf("start a private PostgreSQL: %w", err)
	}
	d.story.OnStop(d.postgres.Stop)
	for _, database := range bankdata.Databases() {
		if err := d.postgres.CreateDatabase(ctx, database); err != nil {
			return err
		}
	}
	d.bank = bankdata.New(bankdata.Config{
		URL: d.postgres.URLFor, Programs: d.postgres.BinDir(), Environment: demokit.Environment(), Accounts: d.config.Accounts,
	})
	d.shell = &demokit.Shell{
		Program: d.config.Program, Dir: d.dir.Path, Env: demokit.Environment(),
		Out: d.config.Out, Err: d.config.Err, Story: d.story,
	}
	return nil
}
