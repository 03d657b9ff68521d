// Package demo is tranche demo: it composes the year-end statements of a small bank from three services, with the
// real product.
//
// It starts a private PostgreSQL, fills a database for each service and damages three accounts. It starts tranche
// serve, the services and a node with the bank's own Go code as separate processes, and then runs and shows commands
// of the tranche program. Later it damages the movements of fifty accounts, repairs them and recomputes only these
// statements, as the ledgers of the services prove. In the end it compares the exported
// statements, PDFs included, with the bank.
//
// Guarantees: any difference is an error, a [demokit.UnequalError]. All its processes have ended when [Run] returns,
// and on Linux also when it is killed. Statements, plan and logs remain in the directory that it prints. Demos can
// run in parallel.
//
// Limits: it does nothing itself that a command of the product does.
package demo

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/tools/demokit"
)

const (
	// DefaultAccounts is the default number of accounts.
	DefaultAccounts = 100_000
	// AllPDFs makes a PDF for every account.
	AllPDFs = -1

	minAccounts = 300
	maxAccounts = 10_000_000
)

// Config configures a demo. The zero value is valid, but makes no PDFs.
type Config struct {
	// Accounts is the number of accounts. 0 means DefaultAccounts.
	Accounts int
	// PDFs is the number of accounts with a PDF; the rest get JSON. AllPDFs means all.
	PDFs int
	// Dir is where statements and logs go. Empty means a new directory under the user's data directory.
	Dir string
	// Keep leaves everything running at the end, until the context ends.
	Keep bool
	// Enter, if not nil, leaves everything running at the end until it yields a line.
	Enter io.Reader
	// Color enables colors in the demo's own lines.
	Color bool
	// Program is the path of the tranche program. Empty means this executable.
	Program string
	// Out and Err are standard output and error, also of the commands. nil means the process's.
	Out, Err io.Writer

	// exported is called with the statements file before the proof. Tests tamper with it.
	exported func(file string) error
}

func (c Config) withDefaults() (Config, error) {
	c.Accounts = cmp.Or(c.Accounts, DefaultAccounts)
	if c.Accounts < minAccounts || c.Accounts > maxAccounts {
		return c, fmt.Errorf("--accounts must be %[2]d to %[3]d, got %[1]d", c.Accounts, minAccounts, maxAccounts)
	}
	if c.PDFs < AllPDFs {
		return c, fmt.Errorf("--pdfs must be a number of accounts or all, got %d", c.PDFs)
	}
	if c.PDFs == AllPDFs || c.PDFs > c.Accounts {
		c.PDFs = c.Accounts
	}
	c.Out, c.Err = cmp.Or[io.Writer](c.Out, os.Stdout), cmp.Or[io.Writer](c.Err, os.Stderr)
	if c.exported == nil {
		c.exported = func(string) error { return nil }
	}
	if c.Program != "" {
		return c, nil
	}
	program, err := os.Executable()
	if err != nil {
		return c, errors.Join(errors.New("find the tranche program itself"), err)
	}
	c.Program = program
	return c, nil
}

const runName = "year-end"

// What remains in the directory, besides the files of the chapters.
const (
	statementsFile = "statements.ndjson"
	pdfsDir        = "pdfs"
)

// Exit codes of tranche.
const (
	exitOK      = 0
	exitRefused = 7 // the input was refused
	exitHeld    = 4 // the run is on hold
)

type demo struct {
	config    Config
	story     *demokit.Story
	dir       *demokit.Dir
	postgres  *embedded.Postgres
	bank      *sampleBank
	shell     *demokit.Shell
	server    server
	branches  string             // URL
	corrupted []corruptedAccount // one in each of three services
	again     []demokit.Check    // what was rerun, by the ledgers
	began     time.Time
}

// Run runs the demo. It returns nil if everything was equal in the end, or ctx's error, after stopping everything.
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
	if d.dir, err = demokit.OpenDir(d.config.Dir, "demo", d.began,
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
		return fmt.Errorf("PostgreSQL runs as user %s, who has no access to %s; choose another directory with --dir",
			access.User, access.At)
	case err != nil:
		return fmt.Errorf("start a private PostgreSQL: %w", err)
	}
	d.story.OnStop(d.postgres.Stop)
	for _, database := range databases() {
		demokit.Stop(d.postgres.CreateDatabase(ctx, database))
	}
	d.bank = &sampleBank{
		url: d.postgres.URLFor, programs: d.postgres.BinDir(), environment: demokit.Environment(),
		accounts: d.config.Accounts,
	}
	d.shell = &demokit.Shell{
		Program: d.config.Program, Dir: d.dir.Path, Env: demokit.Environment(),
		Out: d.config.Out, Err: d.config.Err, Story: d.story,
	}
	return nil
}

type server struct {
	*demokit.Child `json:"-"`

	API  string `json:"api"`
	NATS string `json:"nats"`
}

// end says what remains, and keeps everything running if asked to.
func (d *demo) end(ctx context.Context) error {
	d.story.Say("\nThe whole demo took %.0f s. The statements are in", time.Since(d.began).Seconds())
	d.story.Say("  %s", d.dir.Path)
	if !d.config.Keep && d.config.Enter == nil {
		d.story.Say("The bank and the servers are gone now; tranche demo --keep leaves them running.")
		return nil
	}
	demokit.Stop(d.invite(ctx))
	if d.config.Keep {
		d.story.Say("Ctrl-C ends it all.")
		return d.linger(ctx, nil)
	}
	d.story.Say("Enter ends it all.")
	return d.linger(ctx, enter(d.config.Enter))
}

func (d *demo) invite(ctx context.Context) error {
	account := d.fifty()[2]
	breaks, repairs, err := d.bank.tryYourself(ctx, account)
	if err != nil {
		return err
	}
	psql := fmt.Sprintf("psql '%s' \\", d.postgres.URLFor(branchesDB))
	d.story.Chapter("Your turn: everything still runs")
	d.story.Say("The dashboard, where each account is a pixel:\n  %s", d.story.Paint(demokit.Bold, d.server.API))
	d.story.Say("Break account %d in another terminal:", account)
	d.story.Command(psql, `-c "`+breaks+`"`)
	d.story.Say("Find it on the run's page, by its key, and reset its part %s. Then fix it,", branchesDB)
	d.story.Command(psql, `-c "`+repairs+`"`)
	d.story.Say("and reset the part again, there or here; sending it again needs another approval:")
	d.story.Command("export TRANCHE_URL=" + d.server.API)
	d.story.Command(fmt.Sprintf("tranche run reset last --step %s --key %d --wait --on-hold exit", branchesDB,
		account))
	d.story.Command("tranche run approve last --step " + stepSend)
	return nil
}

// linger waits for the user, or for the server to fail.
func (d *demo) linger(ctx context.Context, entered <-chan struct{}) error {
	select {
	case <-ctx.Done():
		return nil // as asked
	case <-entered:
		return nil
	case <-d.server.Exited():
		return d.server.Failure()
	}
}

// enter returns a channel that is closed after a line was read from r. EOF does not close it.
func enter(r io.Reader) <-chan struct{} {
	entered := make(chan struct{})
	go func() {
		if _, err := bufio.NewReader(r).ReadString('\n'); err == nil {
			close(entered)
		}
	}()
	return entered
}
