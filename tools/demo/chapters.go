package demo

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/tranchehq/tranche/examples/bank"
	"github.com/tranchehq/tranche/examples/yearend"
	"github.com/tranchehq/tranche/tools/demokit"
)

const (
	// fifty is the number of accounts that lose their movements.
	fifty     = 50
	fiftyFile = "fifty.txt"
)

const copyItems = `COPY (SELECT id AS account, CASE WHEN id = ANY ('{%s}') THEN '%s' WHEN id <= %d THEN 'pdf' ` +
	`ELSE 'json' END AS form FROM account ORDER BY id) TO STDOUT CSV HEADER`

func (d *demo) runAll(ctx context.Context) error {
	d.story.Chapter(fmt.Sprintf("One run over all accounts: %s PDFs, the rest as JSON",
		demokit.Grouped(int64(d.config.PDFs))))
	args := []string{
		planName, "--items", "-", "--key", "account", "--name", runName, "--wait", "--on-hold", "exit",
	}
	d.story.Command("psql "+accountsDB+" -c 'COPY (SELECT id AS account, CASE … AS form FROM account) …' |",
		"tranche run start "+strings.Join(args, " "))
	psql := demokit.Must(d.bank.program(ctx, accountsDB, "psql", "-X", "-q", "-c", d.copyItems()))
	began := time.Now()
	demokit.Stop(d.shell.Piped(ctx, psql, exitHeld, append([]string{"run", "start"}, args...)...))
	d.story.Fact("from the bank's first row to the last statement", time.Since(began), d.config.Accounts)
	demokit.Stop(d.tellRefusals(ctx))
	d.story.Chapter("Which failed, and why")
	return d.shell.Typed(ctx, exitOK, "run", "errors", runName)
}

func (d *demo) tellRefusals(ctx context.Context) error {
	var said struct {
		Refused int64 `json:"refused"`
	}
	if err := demokit.Get(ctx, d.branches+"/refused", &said); err != nil {
		return fmt.Errorf("ask the branches service: %w", err)
	}
	if said.Refused > 0 {
		d.story.Say("The branches service turned %s requests away, with 429 and when to retry.",
			demokit.Grouped(said.Refused))
	}
	return nil
}

func (d *demo) rerunFailed(ctx context.Context) error {
	d.story.Chapter("The three repaired, and only those run again")
	demokit.Stop(d.bank.repair(ctx, d.corrupted))
	d.story.Say("Put back by hand: the balance, the branch and the amount.")
	var accounts []int32
	for _, w := range d.corrupted {
		accounts = append(accounts, w.account)
	}
	return d.redo(ctx, accounts, map[string]int64{
		accountsDB: 1, transactionsDB: 1, branchesDB: 1, statementsDB: 3,
	}, func() error {
		return d.shell.Typed(ctx, exitHeld, "run", "rerun", "last", "--failed", "--wait", "--on-hold", "exit")
	})
}

func (d *demo) redoFifty(ctx context.Context) error {
	d.story.Chapter("A fault: fifty accounts' movements break, and are fetched again")
	accounts := d.fifty()
	var keys strings.Builder
	for _, account := range accounts {
		fmt.Fprintln(&keys, account)
	}
	demokit.Stop(os.WriteFile(d.dir.File(fiftyFile), []byte(keys.String()), 0o600))
	lost := demokit.Must(d.bank.corrupt(ctx, lostAmount(), accounts))
	d.story.Say("A movement of each loses its amount. Their parts are nulled out, and no one else's:")
	demokit.Stop(d.redo(ctx, accounts, map[string]int64{transactionsDB: fifty}, func() error {
		return d.shell.Typed(ctx, exitHeld, "run", "reset", "last", "--step", yearend.StepTransactions, "--keys", fiftyFile,
			"--wait", "--on-hold", "exit")
	}))
	d.story.Say("\nThe holes:")
	demokit.Stop(d.shell.Typed(ctx, exitOK, "run", "show", "last"))
	d.story.Chapter("The fifty repaired: fetched again, composed again, and nothing else")
	demokit.Stop(d.bank.repair(ctx, lost))
	want := map[string]int64{transactionsDB: fifty, statementsDB: fifty}
	demokit.Stop(d.redo(ctx, accounts, want, func() error {
		return d.shell.Typed(ctx, exitHeld, "run", "reset", "last", "--step", yearend.StepTransactions,
			"--code", bank.CodeBrokenMovement, "--wait", "--on-hold", "exit")
	}))
	d.story.Say("\nOne of them, from all sides:")
	return d.shell.Typed(ctx, exitOK, "run", "item", "last", strconv.Itoa(int(accounts[1])))
}

// fifty returns accounts far from each other, with PDFs if there are enough.
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

// redo shows what fn adds to the ledgers and keeps it for the proof: want per database, only these accounts.
func (d *demo) redo(ctx context.Context, accounts []int32, want map[string]int64, fn func() error) error {
	mark := demokit.Must(d.bank.mark(ctx))
	demokit.Stop(fn())
	since := demokit.Must(d.bank.since(ctx, mark, accounts))
	d.story.Say("By the ledgers of the services, which they write before they answer:")
	for _, l := range []struct{ database, left string }{
		{accountsDB, "accounts requested"}, {transactionsDB, "movements requested"},
		{branchesDB, "branches requested"}, {statementsDB, "statements composed"},
		{mailDB, "statements sent"},
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

func (d *demo) prove(ctx context.Context) error {
	d.story.Chapter("The proof: the exported statements, PDFs too, against the bank's own sums")
	demokit.Stop(d.shell.Typed(ctx, exitOK, "run", "export", "last", "--step", stepStatement, "--dir", pdfsDir,
		"--name", "{key}.pdf", "--keys", fiftyFile))
	demokit.Stop(d.shell.Typed(ctx, exitOK, "run", "export", "last", "--step", stepStatement, "--out",
		statementsFile))
	file := d.dir.File(statementsFile)
	demokit.Stop(d.config.exported(file))
	began := time.Now()
	books := demokit.Must(d.bank.books(ctx))
	checks := demokit.Must(prove(books, d.pdfs(), file))
	for _, c := range checks {
		d.story.Check(c)
	}
	demokit.Stop(demokit.Verdict("the statements in "+file+" do not agree with the bank", append(checks, d.again...)))
	d.story.Fact("Everything agrees.", time.Since(began), 0)
	return nil
}

const (
	// lastYearFile is a file of another year and origin.
	lastYearFile  = "last-year.csv"
	lastYear      = "account,form\n1,pdf\nHS-2,json\n3,json\n4th,json\n"
	failedFile    = "failed.csv"
	correctedFile = "corrected.csv"
	paperForm     = "paper"
	// One account in paperEach still has it.
	paperEach = 100
)

func (d *demo) refuseFile(ctx context.Context) error {
	d.story.Chapter("A file that does not fit the plan starts nothing")
	path := d.dir.File(lastYearFile)
	demokit.Stop(os.WriteFile(path, []byte(lastYear), 0o600))
	demokit.Stop(d.story.File(path))
	return d.shell.Typed(ctx, exitRefused, "run", "start", planName, "--items", lastYearFile)
}

// paper returns the accounts with the former form. None of them is damaged.
func (d *demo) paper() (accounts []int32) {
	damaged := map[int]bool{}
	for _, c := range d.corrupted {
		damaged[int(c.account)] = true
	}
	for account := paperEach; account <= d.config.Accounts; account += paperEach {
		if !damaged[account] {
			accounts = append(accounts, int32(account))
		}
	}
	return accounts
}

// pdfs returns the number of accounts with a PDF in the end: the first ones, and those that wanted paper.
func (d *demo) pdfs() int {
	n := d.config.PDFs
	for _, account := range d.paper() {
		if int(account) > d.config.PDFs {
			n++
		}
	}
	return n
}

// correctForms has the department correct the wrong forms.
func (d *demo) correctForms(ctx context.Context) error {
	accounts := d.paper()
	d.story.Chapter(demokit.Grouped(int64(len(accounts))) + " wrong forms to the department that knows better, and back")
	demokit.Stop(d.shell.Typed(ctx, exitOK, "run", "export", "last", "--state", "failed", "--code",
		yearend.CodeUnknownForm, "--include", "payload", "--flat", "--columns", "account,form,tranche.error_message",
		"--out", failedFile))
	failed, err := os.ReadFile(d.dir.File(failedFile))
	if err != nil {
		return fmt.Errorf("read the export: %w", err)
	}
	d.story.Command("head -3 " + failedFile)
	for _, line := range bytes.SplitN(failed, []byte("\n"), 4)[:3] {
		d.story.Say("  %s", line)
	}
	d.story.Command(fmt.Sprintf("sed s/,%s,/,%s,/ %s > %s", paperForm, yearend.PDFForm, failedFile, correctedFile))
	corrected := bytes.ReplaceAll(failed, []byte(","+paperForm+","), []byte(","+yearend.PDFForm+","))
	path := d.dir.File(correctedFile)
	demokit.Stop(os.WriteFile(path, corrected, 0o600)) //nolint:gosec // it is in the demo's own directory
	n := int64(len(accounts))
	return d.redo(ctx, accounts, map[string]int64{
		accountsDB: n, transactionsDB: n, branchesDB: n, statementsDB: n,
	}, func() error {
		return d.shell.Typed(ctx, exitHeld, "run", "correct", "last", "--items", correctedFile, "--key", "account",
			"--columns", "account,form", "--reason", "no paper any more", "--wait", "--on-hold", "exit")
	})
}

func (d *demo) send(ctx context.Context) error {
	d.story.Chapter("An operator approves, and then they are sent")
	demokit.Stop(d.shell.Typed(ctx, exitOK, "run", "approve", "last", "--step", stepSend, "--dry-run"))
	n := int64(d.config.Accounts)
	all := make([]int32, n)
	for i := range all {
		all[i] = int32(i + 1)
	}
	return d.redo(ctx, all, map[string]int64{mailDB: n}, func() error {
		demokit.Stop(d.shell.Typed(ctx, exitOK, "run", "approve", "last", "--step", stepSend, "--reason", "looks right"))
		return d.shell.Typed(ctx, exitOK, "run", "watch", "last", "--on-hold", "exit")
	})
}

// copyItems returns the query for the items: the first accounts want a PDF, one in a hundred still wants paper.
func (d *demo) copyItems() string {
	var paper []string
	for _, account := range d.paper() {
		paper = append(paper, strconv.Itoa(int(account)))
	}
	return fmt.Sprintf(copyItems, strings.Join(paper, ","), paperForm, d.config.PDFs)
}
