package demo

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/tranchehq/tranche/examples/bank"
	"github.com/tranchehq/tranche/examples/yearend"
	"github.com/tranchehq/tranche/tools/demo/bankdata"
	"github.com/tranchehq/tranche/tools/demokit"
)

// makeBank fills the databases, and damages three accounts.
func (d *demo) makeBank(ctx context.Context) (err error) {
	d.story.Chapter("A bank of four services, with a database each")
	began := time.Now()
	d.story.Command("pgbench " + strings.Join(d.bank.PgbenchArgs(), " ") + " " + bankdata.Accounts)
	if err := d.story.During(func() error { return d.bank.MakeAccounts(ctx) }); err != nil {
		return err
	}
	d.story.Fact(demokit.Grouped(int64(d.config.Accounts))+" accounts", time.Since(began), d.config.Accounts)
	began = time.Now()
	var movements int64
	err = d.story.During(func() error {
		movements, err = d.bank.MakeYear(ctx)
		return err
	})
	if err != nil {
		return err
	}
	d.story.Fact(fmt.Sprintf("a year of %s movements, owners, branches", demokit.Grouped(movements)), time.Since(began),
		int(movements))
	if d.damage, err = d.bank.Hurt(ctx); err != nil {
		return err
	}
	d.story.Say("Damaged by hand: account %d loses its balance, %d its branch, and a movement",
		d.damage.NoBalance.Account, d.damage.UnknownBranch.Account)
	d.story.Say("of %d its amount.", d.damage.BrokenMovement.Account)
	return nil
}

// startProcesses starts the services, Tranche, and a node of the bank's own, as anybody would. The service that is
// asked over HTTP comes first: the operator of Tranche says that it may be.
func (d *demo) startProcesses(ctx context.Context) error {
	d.story.Chapter("The services, Tranche, and a node with Go code of the bank's own")
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
	d.story.Command("tranche demo-service " + database)
	cmd := d.shell.Command(context.WithoutCancel(ctx), "demo-service", database)
	own, err := d.bank.Env(database)
	cmd.Env = demokit.Environment(append(own, env...)...)
	return cmd, err
}

func (d *demo) startBranches(ctx context.Context) (url string, err error) {
	began := time.Now()
	token, err := writeToken(d.dir.Servers(tokenFile))
	if err != nil {
		return "", err
	}
	cmd, err := d.service(ctx, bankdata.Branches, tokenVariable+"="+token)
	if err != nil {
		return "", err
	}
	var at ready
	child, err := demokit.StartAnnounced(ctx, "the branches service", d.dir.Log(bankdata.Branches), cmd, &at)
	if child != nil {
		d.story.OnStop(child.Stop)
	}
	if err != nil {
		return "", err
	}
	d.story.Fact(fmt.Sprintf("pid %d, %s: one by one, %s a second", child.PID(), at.URL, demokit.Grouped(branchRate)),
		time.Since(began), 0)
	return at.URL, nil
}

func (d *demo) startServer(ctx context.Context) error {
	files := place(d.branches)
	if err := files.write(d.dir.File(connectionsFile), connectionsText); err != nil {
		return err
	}
	if err := files.write(d.dir.File(planFile), planText); err != nil {
		return err
	}
	began := time.Now()
	d.story.Command("tranche serve --connections " + connectionsFile)
	server, err := startServer(ctx, d.shell, d.postgres.URL(), d.dir.Servers(), d.dir.File(connectionsFile),
		d.dir.Log("serve"))
	if server != nil {
		d.story.OnStop(server.Stop)
	}
	if err != nil {
		return err
	}
	d.server = server
	d.shell.Env = demokit.Environment("TRANCHE_URL=" + server.API)
	d.story.Fact(fmt.Sprintf("pid %d, %s, %s", server.PID(), server.API, server.NATS), time.Since(began), 0)
	d.story.Say("Watch it in a browser: %s", d.story.Paint(demokit.Bold, server.API))
	return nil
}

func (d *demo) startEndpoint(ctx context.Context, database, endpoint, how string) error {
	began := time.Now()
	cmd, err := d.service(ctx, database, "NATS_URL="+d.server.NATS, "TRANCHE_DATA_DIR="+d.dir.Servers())
	if err != nil {
		return err
	}
	child, err := demokit.StartChild("the "+database+" service", d.dir.Log(database), cmd)
	if err != nil {
		return err
	}
	d.story.OnStop(child.Stop)
	if err := d.shell.AwaitService(ctx, child, endpoint); err != nil {
		return err
	}
	d.story.Fact(fmt.Sprintf("pid %d, %s", child.PID(), how), time.Since(began), 0)
	return nil
}

func (d *demo) startComposer(ctx context.Context) error {
	began := time.Now()
	cmd, err := d.service(ctx, bankdata.Statements, "NATS_URL="+d.server.NATS,
		"TRANCHE_DATA_DIR="+d.dir.Servers(), databaseVariable+"="+d.server.Database)
	if err != nil {
		return err
	}
	var at ready
	child, err := demokit.StartAnnounced(ctx, "the node that composes", d.dir.Log(bankdata.Statements), cmd, &at)
	if child != nil {
		d.story.OnStop(child.Stop)
	}
	if err != nil {
		return err
	}
	d.story.Fact(fmt.Sprintf("pid %d, a node with the function %s", child.PID(), yearend.Function), time.Since(began), 0)
	return nil
}

// applyPlan shows the plan and puts it on record.
func (d *demo) applyPlan(ctx context.Context) error {
	d.story.Chapter("The plan: gather from three services, compose, and post what somebody has approved")
	if err := d.story.File(d.dir.File(planFile)); err != nil {
		return err
	}
	return d.shell.Typed(ctx, exitOK, "plan", "apply", planFile)
}
