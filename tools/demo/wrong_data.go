package demo

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/tranchehq/tranche/examples/yearend"
	"github.com/tranchehq/tranche/tools/demo/bankdata"
	"github.com/tranchehq/tranche/tools/demokit"
)

const (
	// lastYearFile was exported by somebody else, in another year.
	lastYearFile = "last-year.csv"
	lastYear     = "account,form\n1,pdf\nHS-2,json\n3,json\n4th,json\n"
	// failedFile is what the department gets, and correctedFile what it gives back.
	failedFile    = "failed.csv"
	correctedFile = "corrected.csv"
	// paperForm is a form that statements had once.
	paperForm = "paper"
	// paperEach is one of how many accounts that has it still.
	paperEach = 100
)

// refuseFile shows what becomes of a file that does not fit the plan.
func (d *demo) refuseFile(ctx context.Context) error {
	d.story.Chapter("A file that does not fit the plan starts nothing")
	path := d.dir.File(lastYearFile)
	if err := os.WriteFile(path, []byte(lastYear), 0o600); err != nil {
		return fmt.Errorf("write last year's file: %w", err)
	}
	if err := d.story.File(path); err != nil {
		return err
	}
	return d.shell.Typed(ctx, exitRefused, "run", "start", planName, "--items", lastYearFile)
}

// paper are the accounts that want a form that is no more. None of them is damaged.
func (d *demo) paper() (accounts []int32) {
	damaged := map[int]bool{}
	for _, wound := range d.damage.Wounds() {
		damaged[int(wound.Account)] = true
	}
	for account := paperEach; account <= d.config.Accounts; account += paperEach {
		if !damaged[account] {
			accounts = append(accounts, int32(account))
		}
	}
	return accounts
}

// pdfs is how many accounts have a PDF in the end: the first ones, and those that wanted paper.
func (d *demo) pdfs() int {
	n := d.config.PDFs
	for _, account := range d.paper() {
		if int(account) > d.config.PDFs {
			n++
		}
	}
	return n
}

// correctForms has the department that knows the customers correct what it gave.
func (d *demo) correctForms(ctx context.Context) error {
	accounts := d.paper()
	d.story.Chapter(demokit.Grouped(int64(len(accounts))) + " wrong forms to the department that knows better, and back")
	err := d.shell.Typed(ctx, exitOK, "run", "export", "last", "--state", "failed", "--code", yearend.CodeUnknownForm,
		"--with", "payload", "--flat", "--columns", "account,form,tranche.error_message", "--out", failedFile)
	if err != nil {
		return err
	}
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
	if err := os.WriteFile(path, corrected, 0o600); err != nil { //nolint:gosec // it is in the demo's own directory
		return fmt.Errorf("write the corrected items: %w", err)
	}
	n := int64(len(accounts))
	return d.redo(ctx, accounts, map[string]int64{
		bankdata.Accounts: n, bankdata.Transactions: n, bankdata.Branches: n, bankdata.Statements: n,
	}, func() error {
		return d.shell.Typed(ctx, exitHeld, "run", "correct", "last", "--items", correctedFile, "--key", "account",
			"--columns", "account,form", "--reason", "no paper any more", "--wait", "--on-hold", "exit")
	})
}

// send has somebody look, and then the statements posted.
func (d *demo) send(ctx context.Context) error {
	d.story.Chapter("Somebody looks, and then they are sent")
	if err := d.shell.Typed(ctx, exitOK, "run", "approve", "last", "--step", stepSend, "--dry-run"); err != nil {
		return err
	}
	n := int64(d.config.Accounts)
	all := make([]int32, n)
	for i := range all {
		all[i] = int32(i + 1)
	}
	return d.redo(ctx, all, map[string]int64{bankdata.Mail: n}, func() error {
		err := d.shell.Typed(ctx, exitOK, "run", "approve", "last", "--step", stepSend, "--reason", "looks right")
		if err != nil {
			return err
		}
		return d.shell.Typed(ctx, exitOK, "run", "watch", "last", "--on-hold", "exit")
	})
}

// copyItems are the items: the first accounts want a PDF, and one of a hundred still wants paper.
func (d *demo) copyItems() string {
	var paper []string
	for _, account := range d.paper() {
		paper = append(paper, strconv.Itoa(int(account)))
	}
	return fmt.Sprintf(copyItems, strings.Join(paper, ","), paperForm, d.config.PDFs)
}
