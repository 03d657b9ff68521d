package demo

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/tranchehq/tranche/examples/bank"
	"github.com/tranchehq/tranche/examples/yearend"
	"github.com/tranchehq/tranche/internal/demo/bankdata"
)

// makeBank fills the databases, and damages three accounts.
func (d *demo) makeBank(ctx context.Context) (err error) {
	d.story.chapter("A bank of four services, with a database each")
	began := time.Now()
	d.story.command("pgbench " + strings.Join(d.bank.PgbenchArgs(), " ") + " " + bankdata.Accounts)
	if err := d.story.during(func() error { return d.bank.MakeAccounts(ctx) }); err != nil {
		return err
	}
	d.story.fact(grouped(int64(d.config.Accounts))+" accounts", time.Since(began), d.config.Accounts)
	began = time.Now()
	var movements int64
	err = d.story.during(func() error {
		movements, err = d.bank.MakeYear(ctx)
		return err
	})
	if err != nil {
		return err
	}
	d.story.fact(fmt.Sprintf("a year of %s movements, owners, branches", grouped(movements)), time.Since(began),
		int(movements))
	if d.damage, err = d.bank.Hurt(ctx); err != nil {
		return err
	}
	d.story.say("Damaged by hand: account %d loses its balance, %d its branch, and a movement",
		d.damage.NoBalance.Account, d.damage.UnknownBranch.Account)
	d.story.say("of %d its amount.", d.damage.BrokenMovement.Account)
	return nil
}

// startProcesses starts the services, Tranche, and a node of the bank's own, as anybody would. The service that is
// asked over HTTP comes first: the operator of Tranche says that it may be.
func (d *demo) startProcesses(ctx context.Context) error {
	d.story.chapter("The services, Tranche, and a node with Go code of the bank's own")
	var err error
	if d.branches, err = d.startBranches(ctx); err != nil {
		return err
	}
	if err := d.startServer(ctx); err != nil {
		return err
	}
	for _, service := range []struct{ database, endpoint, how string }{
		{bankdata.Accounts, bank.AccountsEndpoint, "answers chunks over JetStream"},
		{bankdata.Transactions, bank.TransactionsEndpoint, "answers chunks over core NATS"},
		{bankdata.Mail, bank.MailEndpoint, "posts what was composed"},
	} {
		if err := d.startEndpoint(ctx, service.database, service.endpoint, service.how); err != nil {
			return err
		}
	}
	return d.startComposer(ctx)
}

// service is a command that runs one of the demo's services.
func (d *demo) service(ctx context.Context, database string, env ...string) (*exec.Cmd, error) {
	d.story.command("tranche demo-service " + database)
	cmd := d.shell.command(context.WithoutCancel(ctx), "demo-service", database)
	own, err := d.bank.Env(database)
	cmd.Env = environment(append(own, env...)...)
	return cmd, err
}

func (d *demo) log(name string) string { return d.dir.file(logsDir, name+".log") }

func (d *demo) startBranches(ctx context.Context) (url string, err error) {
	began := time.Now()
	token, err := writeToken(d.dir.file(serversDir, tokenFile))
	if err != nil {
		return "", err
	}
	cmd, err := d.service(ctx, bankdata.Branches, tokenVariable+"="+token)
	if err != nil {
		return "", err
	}
	var at ready
	child, err := startAnnounced(ctx, "the branches service", d.log(bankdata.Branches), cmd, &at)
	if child != nil {
		d.onStop(child.stop)
	}
	if err != nil {
		return "", err
	}
	d.story.fact(fmt.Sprintf("pid %d, %s: one by one, %s a second", child.pid(), at.URL, grouped(branchRate)),
		time.Since(began), 0)
	return at.URL, nil
}

func (d *demo) startServer(ctx context.Context) error {
	files := place(d.branches)
	if err := files.write(d.dir.file(connectionsFile), connectionsText); err != nil {
		return err
	}
	if err := files.write(d.dir.file(planFile), planText); err != nil {
		return err
	}
	began := time.Now()
	d.story.command("tranche serve --connections " + connectionsFile)
	server, err := d.shell.startServer(ctx, d.postgres.URL(), d.dir.file(serversDir), d.dir.file(connectionsFile),
		d.log("serve"))
	if server != nil {
		d.onStop(server.stop)
	}
	if err != nil {
		return err
	}
	d.server = server
	d.shell.env = environment("TRANCHE_URL=" + server.API)
	d.story.fact(fmt.Sprintf("pid %d, %s, %s", server.pid(), server.API, server.NATS), time.Since(began), 0)
	d.story.say("Watch it in a browser: %s", d.story.paint(bold, server.API))
	return nil
}

func (d *demo) startEndpoint(ctx context.Context, database, endpoint, how string) error {
	began := time.Now()
	cmd, err := d.service(ctx, database, "NATS_URL="+d.server.NATS, "TRANCHE_DATA_DIR="+d.dir.file(serversDir))
	if err != nil {
		return err
	}
	child, err := startChild("the "+database+" service", d.log(database), cmd)
	if err != nil {
		return err
	}
	d.onStop(child.stop)
	if err := d.shell.awaitService(ctx, child, endpoint); err != nil {
		return err
	}
	d.story.fact(fmt.Sprintf("pid %d, %s", child.pid(), how), time.Since(began), 0)
	return nil
}

func (d *demo) startComposer(ctx context.Context) error {
	began := time.Now()
	cmd, err := d.service(ctx, bankdata.Statements, "NATS_URL="+d.server.NATS,
		"TRANCHE_DATA_DIR="+d.dir.file(serversDir), databaseVariable+"="+d.server.Database)
	if err != nil {
		return err
	}
	var at ready
	child, err := startAnnounced(ctx, "the node that composes", d.log(bankdata.Statements), cmd, &at)
	if child != nil {
		d.onStop(child.stop)
	}
	if err != nil {
		return err
	}
	d.story.fact(fmt.Sprintf("pid %d, a node with the function %s", child.pid(), yearend.Function), time.Since(began), 0)
	return nil
}

// applyPlan shows the plan and puts it on record.
func (d *demo) applyPlan(ctx context.Context) error {
	d.story.chapter("The plan: gather from three services, compose, and post what somebody has approved")
	if err := d.story.file(d.dir.file(planFile)); err != nil {
		return err
	}
	return d.shell.typed(ctx, exitOK, "plan", "apply", planFile)
}
