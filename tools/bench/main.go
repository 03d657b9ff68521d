package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	if isEcho(os.Args) {
		exit(runEcho(os.Args[2]))
	}
	if isMisbehaving(os.Args) {
		exit(runMisbehaving(os.Args[2], os.Args[3], os.Args[4]))
	}
	if isMany(os.Args) {
		exit(runMany(os.Args[2], os.Args[3]))
	}
	cfg, err := parseFlags(os.Args[1:], os.Stderr)
	if errors.Is(err, flag.ErrHelp) {
		os.Exit(0)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(2)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second Ctrl-C ends us at once; the kernel then ends our children.
	context.AfterFunc(ctx, stop)
	err = run(ctx, cfg)
	if ctx.Err() != nil && err != nil {
		err = fmt.Errorf("interrupted: %w", err)
	}
	exit(err)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
	os.Exit(0)
}

// run measures what cfg asks for and prints it.
func run(ctx context.Context, cfg config) (err error) {
	var target *page
	if cfg.write != "" {
		if target, err = openPage(cfg.write); err != nil {
			return err
		}
	}
	if err := checkProgram(cfg); err != nil {
		return err
	}
	pg, err := openCluster(ctx, cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, pg.close()) }()
	host, err := describeMachine(ctx, pg)
	if err != nil {
		return err
	}
	rep := report{Machine: host, Rounds: cfg.rounds, Keys: cfg.keys}
	if rep.Results, err = race(ctx, pg, cfg.rounds, chooseContestants(cfg, pg)); err != nil {
		return err
	}
	rep.Ratios, rep.Missing = ratios(rep.Results)
	if cfg.wants("latency") {
		if rep.Latency, err = measureLatency(ctx, cfg, pg); err != nil {
			return err
		}
	}
	if err := measureControl(ctx, cfg, pg, &rep); err != nil {
		return err
	}
	if cfg.wants("many") {
		if err := measureMany(ctx, cfg, pg, &rep); err != nil {
			return fmt.Errorf("many: %w", err)
		}
	}
	if cfg.wants("old") {
		if err := measureOld(ctx, cfg, pg, &rep); err != nil {
			return fmt.Errorf("old: %w", err)
		}
	}
	if target != nil {
		if err := target.fill(&rep); err != nil {
			return err
		}
	}
	return rep.write(os.Stdout, cfg.format)
}
