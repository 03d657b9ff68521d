package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/tranchehq/tranche/examples/bank"
	"github.com/tranchehq/tranche/examples/yearend"
	"github.com/tranchehq/tranche/tools/demokit"
)

func (d *demo) makeBank(ctx context.Context) (err error) {
	d.story.Chapter("A bank of four services, with a database each")
	began := time.Now()
	d.story.Command("pgbench " + strings.Join(d.bank.pgbenchArgs(), " ") + " " + accountsDB)
	demokit.Stop(d.story.During(func() error { return d.bank.makeAccounts(ctx) }))
	d.story.Fact(demokit.Grouped(int64(d.config.Accounts))+" accounts", time.Since(began), d.config.Accounts)
	began = time.Now()
	var movements int64
	err = d.story.During(func() error {
		movements, err = d.bank.makeYear(ctx)
		return err
	})
	if err != nil {
		return err
	}
	d.story.Fact(fmt.Sprintf("a year of %s movements, owners, branches", demokit.Grouped(movements)), time.Since(began),
		int(movements))
	if d.corrupted, err = d.bank.corruptThree(ctx); err != nil {
		return err
	}
	d.story.Say("Damaged by hand: account %d loses its balance, %d its branch, and a movement",
		d.corrupted[0].account, d.corrupted[1].account)
	d.story.Say("of %d its amount.", d.corrupted[2].account)
	return nil
}

// startProcesses starts the services, Tranche and the bank's node; the HTTP service first, for its address.
func (d *demo) startProcesses(ctx context.Context) error {
	d.story.Chapter("The services, Tranche, and a node with Go code of the bank's own")
	d.branches = d.startBranches(ctx)
	demokit.Stop(d.startServer(ctx))
	for _, service := range []struct{ database, endpoint, how string }{
		{accountsDB, bank.AccountsEndpoint, "answers chunks over JetStream"},
		{transactionsDB, bank.TransactionsEndpoint, "answers chunks over core NATS"},
		{mailDB, bank.MailEndpoint, "posts what was composed"},
		{statementsDB, "", "a node with the function " + yearend.Function},
	} {
		demokit.Stop(d.startProcess(ctx, service.database, service.endpoint, service.how))
	}
	return nil
}

func (d *demo) service(ctx context.Context, database string, env ...string) (*exec.Cmd, error) {
	d.story.Command("tranche demo-service " + database)
	cmd := d.shell.Command(context.WithoutCancel(ctx), "demo-service", database)
	own, err := d.bank.env(database)
	cmd.Env = demokit.Environment(append(own, env...)...)
	return cmd, err
}

func (d *demo) startBranches(ctx context.Context) (url string) {
	began := time.Now()
	token := demokit.Must(writeToken(d.dir.Servers(tokenFile)))
	cmd := demokit.Must(d.service(ctx, branchesDB, tokenVariable+"="+token))
	var at ready
	child := demokit.Must(d.story.Start(ctx, "the branches service", d.dir.Log(branchesDB), cmd, &at))
	d.story.Fact(fmt.Sprintf("pid %d, %s: one by one, %s a second", child.PID(), at.URL, demokit.Grouped(branchRate)),
		time.Since(began), 0)
	return at.URL
}

func (d *demo) startServer(ctx context.Context) (err error) {
	err = errors.Join(os.WriteFile(d.dir.File(connectionsFile), placed(connectionsText, d.branches), 0o600),
		os.WriteFile(d.dir.File(planFile), placed(planText, d.branches), 0o600))
	if err != nil {
		return fmt.Errorf("write the demo's files: %w", err)
	}
	began := time.Now()
	d.story.Command("tranche serve --connections " + connectionsFile)
	cmd := d.shell.Command(context.WithoutCancel(ctx), "--json", "serve", "--connections", d.dir.File(connectionsFile),
		"--listen", "127.0.0.1:0", "--nats-listen", "127.0.0.1:0", "--data-dir", d.dir.Servers())
	// The demo counts executions: a node that is only slow must not lose its work to another.
	cmd.Env = demokit.Environment("TRANCHE_DATABASE="+d.postgres.URL(), "TRANCHE_SESSION_TTL=1m")
	if d.server.Child, err = d.story.Start(ctx, "tranche serve", d.dir.Log("serve"), cmd, &d.server); err != nil {
		return err
	}
	d.shell.Env = demokit.Environment("TRANCHE_URL=" + d.server.API)
	d.story.Fact(fmt.Sprintf("pid %d, %s, %s", d.server.PID(), d.server.API, d.server.NATS), time.Since(began), 0)
	d.story.Say("Watch it in a browser: %s", d.story.Paint(demokit.Bold, d.server.API))
	return nil
}

// startProcess starts a service that connects to NATS and waits until it listens or, without endpoint, says so.
func (d *demo) startProcess(ctx context.Context, database, endpoint, how string) error {
	began := time.Now()
	env, into := []string{"NATS_URL=" + d.server.NATS, "TRANCHE_DATA_DIR=" + d.dir.Servers()}, any(nil)
	if endpoint == "" { // it is a node
		env, into = append(env, databaseVariable+"="+d.postgres.URL()), &ready{}
	}
	cmd := demokit.Must(d.service(ctx, database, env...))
	child, err := d.story.Start(ctx, "the "+database+" service", d.dir.Log(database), cmd, into)
	if err == nil && endpoint != "" {
		err = d.shell.AwaitService(ctx, child, endpoint, "", 1)
	}
	if err != nil {
		return err
	}
	d.story.Fact(fmt.Sprintf("pid %d, %s", child.PID(), how), time.Since(began), 0)
	return nil
}

func (d *demo) applyPlan(ctx context.Context) error {
	d.story.Chapter("The plan: gather from three services, compose, and post what is approved")
	demokit.Stop(d.story.File(d.dir.File(planFile)))
	return d.shell.Typed(ctx, exitOK, "plan", "apply", planFile)
}
