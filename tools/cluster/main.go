// Command cluster is make cluster: it starts three machines of Tranche on this one, breaks one thing after the other
// under a run, and proves each item. It is no part of a release.
//
//	cluster [flags]          all of it; exit code 0 when nothing was lost
//	cluster service NAME     one of the services, for the first
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"go.uber.org/zap"
	"golang.org/x/term"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := run(ctx)
	stop()
	if errors.Is(err, context.Canceled) {
		err = errors.New("broken off; everything that was started has ended")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if len(os.Args) == 3 && os.Args[1] == "service" {
		log, err := zap.NewProduction()
		if err != nil {
			return err
		}
		return RunService(ctx, os.Args[2], log)
	}
	prometheus, _ := exec.LookPath("prometheus") // it is not needed
	config := Config{Self: self, Prometheus: prometheus}
	flag.IntVar(&config.Items, "items", DefaultItems, "the size of the run")
	flag.StringVar(&config.Dir, "dir", "", "where logs and ledgers go")
	flag.StringVar(&config.Repository, "repository", ".", "where docs and deploy are")
	flag.StringVar(&config.Tranche, "tranche", "bin/tranche", "the program")
	flag.StringVar(&config.Next, "next", "bin/tranche-next", "its next version")
	flag.StringVar(&config.NATS, "nats-server", "bin/nats-server", "NATS's server")
	flag.Parse()
	config.Color = term.IsTerminal(int(os.Stdout.Fd())) && os.Getenv("NO_COLOR") == ""
	return Run(ctx, config)
}
