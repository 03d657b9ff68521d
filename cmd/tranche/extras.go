package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/demo"
)

// extras are the commands that live on top of the others.
type extras struct {
	Demo        demoStory   `cmd:"" help:"Make a small bank, run a year-end over it, break it, repair it, prove it."`
	DemoService demoService `cmd:"" hidden:"" help:"The demo's statement service; NATS_URL and PGHOST say where."`
}

type demoStory struct {
	Scale        int    `default:"1" help:"The bank has this many times 100,000 accounts." placeholder:"N"`
	Transactions int    `help:"Movements of the year: 20,000 for each scale, at most 100,000, unless given." placeholder:"N"`
	Dir          string `help:"Where statements and logs go." placeholder:"DIR"`
	Keep         bool   `help:"Leave everything running at the end, until Ctrl-C."`
	Color        string `enum:"auto,always,never" default:"auto" placeholder:"WHEN" help:"auto (a terminal, and no NO_COLOR), always or never."`
}

// Run tells the story. With --json it goes to standard error, and the outcome to standard output.
func (d *demoStory) Run(ctx context.Context, term *console) error {
	var out io.Writer // nil: the process's own, so that what the demo runs sees the terminal
	if term.json {
		out = term.err
	}
	// When its reader has read enough, as head has, a write fails instead of ending the process, and the servers stop.
	// Ignored, the signal would be ignored by the children too.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	began := time.Now()
	err := demo.Run(ctx, demo.Config{
		Scale: d.Scale, Transactions: d.Transactions, Dir: d.Dir, Keep: d.Keep, Out: out,
		Color: !term.json && d.coloured(term),
	})
	if err == nil && term.json {
		err = term.document(map[string]any{"equal": true, "seconds": time.Since(began).Seconds()})
	}
	return err
}

func (d *demoStory) coloured(term *console) bool {
	return d.Color == "always" || d.Color == "auto" && os.Getenv("NO_COLOR") == "" && isTerminalOut(term)
}

// isTerminalOut reports whether a person looks at standard output.
func isTerminalOut(term *console) bool {
	_, ok := term.out.(*inertWriter)
	return ok
}

type demoService struct{}

// Run serves until a signal.
func (demoService) Run(ctx context.Context) error {
	config := zap.NewProductionConfig()
	config.OutputPaths = []string{"stderr"}
	log, err := config.Build()
	if err != nil {
		return err
	}
	defer func() { _ = log.Sync() }() // fails on terminals
	return demo.RunService(ctx, demo.ServiceConfig{Log: log})
}
