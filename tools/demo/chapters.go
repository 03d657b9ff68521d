package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/tranchehq/tranche/examples/bank"
	"github.com/tranchehq/tranche/examples/yearend"
	"github.com/tranchehq/tranche/tools/demo/bankdata"
	"github.com/tranchehq/tranche/tools/demokit"
)

const (
	// fifty is how many accounts lose their movements.
	fifty = 50
	// fiftyFile has their numbers.
	fiftyFile = "fifty.txt"
)

const copyItems = `COPY (SELECT id AS account, CASE WHEN id = ANY ('{%s}') THEN '%s' WHEN id <= %d THEN 'pdf' ` +
	`ELSE 'json' END AS form FROM account ORDER BY id) TO STDOUT CSV HEADER`

// runAll runs all accounts and shows which failed.
func (d *demo) runAll(ctx context.Context) error {
	d.story.Chapter(fmt.Sprintf("One run over all accounts: %s PDFs, the others as JSON",
		demokit.Grouped(int64(d.config.PDFs))))
	args := []string{
		planName, "--items", "-", "--key", "account", "--name", runName, "--wait", "--on-hold", "exit",
	}
	d.story.Command("psql "+bankdata.Accounts+" -c 'COPY (SELECT id AS account, CASE … AS form FROM account) …' |",
		"tranche run start "+strings.Join(args, " "))
	psql, err := d.bank.Program(ctx, bankdata.Accounts, "psql", "-X", "-q", "-c", d.copyItems())
	if err != nil {
		return err
	}
	began := time.Now()
	if err := d.shell.Piped(ctx, psql, exitHeld, append([]string{"run", "start"}, args...)...); err != nil {
		return err
	}
	d.story.Fact("from the bank's first row to the last statement", time.Since(began), d.config.Accounts)
	if err := d.tellRefusals(ctx); err != nil {
		return err
	}
	d.story.Chapter("Which failed, and why")
	return d.shell.Typed(ctx, exitOK, "run", "errors", runName)
}

// tellRefusals says how often the branches service had too much.
func (d *demo) tellRefusals(ctx context.Context) error {
	var said struct {
		Refused int64 `json:"refused"`
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, d.branches+"/refused", nil)
	if err != nil {
		return fmt.Errorf("ask the branches service: %w", err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return fmt.Errorf("ask the branches service: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	if err := json.NewDecoder(response.Body).Decode(&said); err != nil {
		return fmt.Errorf("understand the branches service: %w", err)
	}
	if said.Refused > 0 {
		d.story.Say("The branches service turned %s requests away, with 429 and when to come back.",
			demokit.Grouped(said.Refused))
	}
	return nil
}

// rerunFailed repairs the bank and runs the three accounts again, each at the step where it failed.
func (d *demo) rerunFailed(ctx context.Context) error {
	d.story.Chapter("The three repaired, and only those run again")
	if err := d.bank.Repair(ctx, d.damage); err != nil {
		return err
	}
	d.story.Say("Put back by hand: the balance, the branch and the amount.")
	var accounts []int32
	for _, w := range d.damage.Wounds() {
		accounts = append(accounts, w.Account)
	}
	return d.redo(ctx, accounts, map[string]int64{
		bankdata.Accounts: 1, bankdata.Transactions: 1, bankdata.Branches: 1, bankdata.Statements: 3,
	}, func() error {
		return d.shell.Typed(ctx, exitHeld, "run", "rerun", "last", "--failed", "--wait", "--on-hold", "exit")
	})
}

// redoFifty breaks the movements of fifty accounts, has their parts taken back, and repairs them.
func (d *demo) redoFifty(ctx context.Context) error {
	d.story.Chapter("A fault: fifty accounts' movements break, and are fetched again")
	accounts := d.fifty()
	var keys strings.Builder
	for _, account := range accounts {
		fmt.Fprintln(&keys, account)
	}
	if err := os.WriteFile(d.dir.File(fiftyFile), []byte(keys.String()), 0o600); err != nil {
		return fmt.Errorf("write the fifty accounts down: %w", err)
	}
	lost, err := d.bank.LoseAmounts(ctx, accounts)
	if err != nil {
		return err
	}
	d.story.Say("A movement of each loses its amount. Their parts are nulled out, and nobody else's:")
	err = d.redo(ctx, accounts, map[string]int64{bankdata.Transactions: fifty}, func() error {
		return d.shell.Typed(ctx, exitHeld, "run", "reset", "last", "--step", yearend.StepTransactions, "--keys", fiftyFile,
			"--wait", "--on-hold", "exit")
	})
	if err != nil {
		return err
	}
	d.story.Say("\nThe holes:")
	if err := d.shell.Typed(ctx, exitOK, "run", "show", "last"); err != nil {
		return err
	}
	d.story.Chapter("The fifty repaired: fetched again, composed again, and nothing else")
	if err := d.bank.FindAmounts(ctx, lost); err != nil {
		return err
	}
	want := map[string]int64{bankdata.Transactions: fifty, bankdata.Statements: fifty}
	err = d.redo(ctx, accounts, want, func() error {
		return d.shell.Typed(ctx, exitHeld, "run", "reset", "last", "--step", yearend.StepTransactions,
			"--code", bank.CodeBrokenMovement, "--wait", "--on-hold", "exit")
	})
	if err != nil {
		return err
	}
	d.story.Say("\nOne of them, from all sides:")
	return d.shell.Typed(ctx, exitOK, "run", "item", "last", strconv.Itoa(int(accounts[1])))
}

// fifty are accounts with PDFs, if there are as many, far from each other.
func (d *demo) fifty() []int32 {
	among := d.config.PDFs
	if among < fifty {
		among = d.config.Accounts
	}
	var accounts []int32
	for i := range fifty {
		accounts = append(accounts, int32(1+i*among/fifty))
	}
	return accounts
}

// redo shows what the ledgers have after fn, and remembers it for the proof: so many of these accounts by each service
// and those who compose, and nobody else.
func (d *demo) redo(ctx context.Context, accounts []int32, want map[string]int64, fn func() error) error {
	mark, err := d.bank.Mark(ctx)
	if err != nil {
		return err
	}
	if err := fn(); err != nil {
		return err
	}
	since, err := d.bank.Since(ctx, mark, accounts)
	if err != nil {
		return err
	}
	d.story.Say("By the ledgers of the services, which they write before they answer:")
	for _, l := range []struct{ database, left string }{
		{bankdata.Accounts, "accounts asked for"}, {bankdata.Transactions, "movements asked for"},
		{bankdata.Branches, "branches asked for"}, {bankdata.Statements, "statements composed"},
		{bankdata.Mail, "statements sent"},
	} {
		asked := since[l.database]
		c := demokit.Check{Left: l.left, Got: asked.Times, Want: want[l.database], Right: "wanted"}
		if asked.Accounts != asked.Times {
			c.FirstWrong = fmt.Sprintf("only %d different accounts", asked.Accounts)
		}
		if asked.Others > 0 {
			c.FirstWrong = fmt.Sprintf("%d for other accounts", asked.Others)
		}
		d.story.Check(c)
		d.again = append(d.again, c)
	}
	return nil
}

// prove exports the statements, reads the file back and compares them with the bank.
func (d *demo) prove(ctx context.Context) error {
	d.story.Chapter("The proof: the exported statements, PDFs too, against the bank's own sums")
	err := d.shell.Typed(ctx, exitOK, "run", "export", "last", "--step", stepStatement, "--dir", pdfsDir,
		"--name", "{key}.pdf", "--keys", fiftyFile)
	if err != nil {
		return err
	}
	if err := d.shell.Typed(ctx, exitOK, "run", "export", "last", "--step", stepStatement, "--out",
		statementsFile); err != nil {
		return err
	}
	file := d.dir.File(statementsFile)
	if err := d.config.exported(file); err != nil {
		return err
	}
	began := time.Now()
	books, err := d.bank.Books(ctx)
	if err != nil {
		return err
	}
	proof, err := prove(books, d.pdfs(), file)
	if err != nil {
		return err
	}
	for _, c := range proof.checks {
		d.story.Check(c)
	}
	proof.checks = append(proof.checks, d.again...)
	if err := proof.verdict(); err != nil {
		return err
	}
	d.story.Fact("Everything agrees.", time.Since(began), 0)
	return nil
}
