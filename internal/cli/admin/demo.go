//go:build unix

package admin

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/tools/demo"
)

type demoCommands struct {
	Demo        demoStory   `cmd:"" help:"Make a small bank, gather and compose its year-end, break it, repair it, prove it."`
	DemoService demoService `cmd:"" hidden:"" help:"A service of the demo's; NATS_URL and PGHOST say where."`
}

type demoStory struct {
	Accounts int    `default:"100000" help:"How many accounts the bank has (${default})." placeholder:"N"`
	PDFs     amount `name:"pdfs" default:"2000" help:"How many get a PDF (${default}), or all; the rest get JSON." placeholder:"N"`
	Dir      string `help:"Where statements and logs go." placeholder:"DIR"`
	Keep     bool   `help:"Leave everything running at the end, until Ctrl-C."`
	Color    string `enum:"auto,always,never" default:"auto" placeholder:"WHEN" help:"auto (a terminal, and no NO_COLOR), always or never."`
}

// Run runs the demo. With --json its text goes to standard error, and the result to standard output.
func (d *demoStory) Run(ctx context.Context, term *cli.Console) error {
	var out io.Writer // nil: the process's own, so that child processes see the terminal
	if term.JSON {
		out = term.Err
	}
	// When the reader of the output ends, as head does, a write fails instead of ending the process, and the servers
	// stop. An ignored signal would be ignored by the children too.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	began := time.Now()
	err := demo.Run(ctx, demo.Config{
		Accounts: d.Accounts, PDFs: int(d.PDFs), Dir: d.Dir, Keep: d.Keep, Enter: d.person(term), Out: out,
		Color: !term.JSON && (d.Color == "always" ||
			d.Color == "auto" && os.Getenv("NO_COLOR") == "" && cli.IsTerminalOut(term)),
	})
	if err == nil && term.JSON {
		err = term.Document(map[string]any{"equal": true, "seconds": time.Since(began).Seconds()})
	}
	return err
}

func (d *demoStory) person(term *cli.Console) io.Reader {
	if term.JSON || !cli.IsTerminalOut(term) || !cli.IsTerminal(os.Stdin) {
		return nil
	}
	return os.Stdin
}

type amount int

func (a *amount) UnmarshalText(text []byte) error {
	if string(text) == "all" {
		*a = demo.AllPDFs
		return nil
	}
	n, err := strconv.Atoi(string(text))
	if err != nil || n < 0 {
		return fmt.Errorf("%q is neither a number nor all", text)
	}
	*a = amount(n)
	return nil
}

type demoService struct {
	Name string `arg:"" enum:"accounts,transactions,branches,statements,mail" help:"accounts, transactions, branches, or statements: the node that composes them."`
}

func (s *demoService) Run(ctx context.Context, term *cli.Console) error {
	config := zap.NewProductionConfig()
	config.OutputPaths = []string{"stderr"}
	log, err := config.Build()
	if err != nil {
		return err
	}
	defer func() { _ = log.Sync() }() // fails on terminals
	return demo.RunService(ctx, demo.ServiceConfig{Name: s.Name, Out: term.Out, Log: log})
}
