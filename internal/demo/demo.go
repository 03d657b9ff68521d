package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/examples/statements"
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
	bank     *bank
	shell    *shell
	server   *server
	damage   *damage
	again    check // what the re-run executed
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
		d.open, d.makeBank, d.startProcesses, d.runAll, d.rerunFailed, d.prove, d.end,
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
	if err := d.postgres.CreateDatabase(ctx, BankDatabase); err != nil {
		return err
	}
	d.bank, err = newBank(d.postgres.URLFor(BankDatabase), d.postgres.BinDir())
	d.shell = &shell{
		program: d.config.Program, dir: d.dir.path, env: environment(),
		out: d.config.Out, err: d.config.Err, story: d.story,
	}
	return err
}

func (d *demo) accounts() int { return d.config.Scale * AccountsPerScale }

// makeBank has pgbench make a bank with two years of movements; the second is the one to close.
func (d *demo) makeBank(ctx context.Context) error {
	d.story.chapter("A bank, made by PostgreSQL's own pgbench")
	began := time.Now()
	d.story.command("pgbench " + strings.Join(initArgs(d.config.Scale), " ") + " bank")
	if err := d.story.during(func() error { return d.bank.create(ctx, d.config.Scale) }); err != nil {
		return err
	}
	d.story.fact(grouped(int64(d.accounts()))+" accounts", time.Since(began), d.accounts())
	began = time.Now()
	last := max(d.config.Transactions/4, clients)
	d.story.command("pgbench " + strings.Join(yearArgs(d.config.Transactions), " ") + " bank")
	err := d.story.during(func() error { return d.bank.years(ctx, last, d.config.Transactions) })
	if err != nil {
		return err
	}
	n := (d.config.Transactions/clients + last/clients) * clients
	d.story.fact(grouped(int64(n))+" transactions, last year's and this year's", time.Since(began), n)
	if err := d.bank.prepare(ctx); err != nil {
		return err
	}
	return d.hurt(ctx)
}

func (d *demo) hurt(ctx context.Context) (err error) {
	if d.damage, err = d.bank.hurt(ctx); err != nil {
		return err
	}
	d.story.say("Three accounts damaged by hand: %d loses its balance, %d its branch,",
		d.damage.noBalance.account, d.damage.unknownBranch.account)
	d.story.say("and a movement of %d its amount.", d.damage.brokenMovement.account)
	return nil
}

// startProcesses starts Tranche and the service, as anybody would.
func (d *demo) startProcesses(ctx context.Context) error {
	d.story.chapter("Tranche, and a service that makes statements (examples/statements)")
	began := time.Now()
	d.story.command("tranche serve")
	server, err := d.shell.startServer(ctx, d.postgres.URL(), d.dir.file(serversDir), d.dir.file(logsDir, "serve.log"))
	if server != nil {
		d.onStop(server.stop)
	}
	if err != nil {
		return err
	}
	d.server = server
	d.shell.env = environment("TRANCHE_URL=" + server.API)
	d.story.fact(fmt.Sprintf("pid %d, %s, %s", server.pid(), server.API, server.NATS), time.Since(began), 0)
	return d.startService(ctx)
}

func (d *demo) startService(ctx context.Context) error {
	began := time.Now()
	d.story.command("tranche demo-service")
	cmd := d.shell.command(context.WithoutCancel(ctx), "demo-service")
	cmd.Env = environment(append(d.bank.env, "NATS_URL="+d.server.NATS)...)
	service, err := startChild("the statement service", d.dir.file(logsDir, "service.log"), cmd)
	if err != nil {
		return err
	}
	d.onStop(service.stop)
	if err := d.shell.awaitService(ctx, service); err != nil {
		return err
	}
	d.story.fact(fmt.Sprintf("pid %d, listens on endpoint %s", service.pid(), statements.Endpoint), time.Since(began), 0)
	return nil
}

// runAll runs all accounts and shows which failed.
func (d *demo) runAll(ctx context.Context) error {
	d.story.chapter("One run over all accounts, straight from the bank")
	const copyOut = "COPY pgbench_accounts (aid) TO STDOUT CSV HEADER"
	args := []string{"--endpoint", statements.Endpoint, "--items", "-", "--key", "aid", "--name", runName, "--wait"}
	d.story.command("psql bank -c '"+copyOut+"' |", "tranche run start "+strings.Join(args[:6], " ")+" \\",
		strings.Join(args[6:], " "))
	psql, err := d.bank.program(ctx, "psql", "-X", "-q", "-c", copyOut)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := d.shell.piped(ctx, psql, exitFailed, append([]string{"run", "start"}, args...)...); err != nil {
		return err
	}
	d.story.fact("from the bank's first row to the last statement", time.Since(began), d.accounts())
	d.story.chapter("Which failed, and why")
	return d.shell.typed(ctx, exitOK, "run", "errors", runName)
}

// rerunFailed repairs the bank and runs the three accounts again, each in a request of its own.
func (d *demo) rerunFailed(ctx context.Context) error {
	d.story.chapter("The three repaired, and only those run again, one to a request")
	before, err := d.shell.awaitExecuted(ctx, int64(d.accounts()))
	if err != nil {
		return err
	}
	if err := d.bank.repair(ctx, d.damage); err != nil {
		return err
	}
	d.story.say("Put back by hand: balance %s, branch %d, amount %s.", grouped(d.damage.noBalance.old),
		d.damage.unknownBranch.old, grouped(d.damage.brokenMovement.old))
	if err := d.shell.typed(ctx, exitOK, "run", "rerun", "last", "--failed", "--chunk", "1", "--wait"); err != nil {
		return err
	}
	wounds := int64(len(d.damage.wounds()))
	after, err := d.shell.awaitExecuted(ctx, before+wounds)
	d.again = check{left: "executed again", got: after - before, want: wounds, right: "accounts repaired"}
	return err
}

// prove exports the statements, reads the file back and compares it with the bank.
func (d *demo) prove(ctx context.Context) error {
	d.story.chapter("The proof: the exported statements against the bank")
	if err := d.shell.typed(ctx, exitOK, "run", "export", "last", "--out", statementsFile); err != nil {
		return err
	}
	file := d.dir.file(statementsFile)
	if err := d.config.exported(file); err != nil {
		return err
	}
	began := time.Now()
	books, err := d.bank.books(ctx, d.accounts())
	if err != nil {
		return err
	}
	proof, err := books.prove(file)
	if err != nil {
		return err
	}
	proof.checks = append(proof.checks, d.again)
	for _, c := range proof.checks {
		d.story.check(c)
	}
	if err := proof.verdict(); err != nil {
		return err
	}
	d.story.fact("Everything agrees.", time.Since(began), 0)
	return nil
}

// end says what is left, and keeps everything running when that is wanted.
func (d *demo) end(ctx context.Context) error {
	d.story.say("\nThe whole demo took %.0f s. The statements are in", time.Since(d.began).Seconds())
	d.story.say("  %s", d.dir.file(statementsFile))
	if !d.config.Keep {
		d.story.say("The bank and the servers are gone now; tranche demo --keep leaves them running.")
		return nil
	}
	d.story.say("Everything still runs. In another terminal:")
	d.story.command("export TRANCHE_URL=" + d.server.API)
	d.story.command("tranche run item last " + fmt.Sprint(d.damage.noBalance.account))
	d.story.say("Ctrl-C ends it all.")
	select {
	case <-ctx.Done():
		return nil // as asked
	case <-d.server.exited:
		return d.server.failure()
	}
}
