// Command bench compares Tranche with familiar alternatives, in one run on one private PostgreSQL cluster.
//
// The contestants:
//
//   - floor: plain pgx code that moves the same bytes in and out of PostgreSQL over one connection, without
//     coordination. It is the yardstick; see [floor].
//   - floor-raw: the same with COPY encoded by hand, a stricter bar; see [floorRaw].
//   - tranche: one `tranche serve` and one echo service as separate processes. A CSV stream is sent over HTTP; the
//     clock stops when the run is completed and all results are stored; see [tranche].
//   - river: River with one job per item and recorded output; see [riverQueue].
//   - latency: runs of one item, and of a few thousand, on an idle node.
//   - floor-gather: the floor with three parts per item; see [floor.gather].
//   - gather: Tranche with a plan of three steps, one part per item from each; see [tranches].
//   - holes: a run that gathers and composes, and reruns of parts of it; see [measureHoles].
//   - many: thousands of small runs over two hundred endpoints, alone and during a large one, with one node and with
//     several; see [measureMany].
//
// Rounds are interleaved (floor, tranche, river, floor, …), so that disturbances of the machine affect all alike.
// Every round starts with a fresh database and a checkpoint. Ratios are taken within a round; tables show medians and
// ranges. Results are compared with the input after the clock has stopped, in SQL. fsync and synchronous_commit are
// never turned off.
//
// It is neither a load generator nor a tuning tool. Its numbers do not compare across machines, only the ratios in
// one run do.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/tranchehq/tranche/tools/demokit"
)

func main() {
	if called, err := serveAs(os.Args[1:]); called {
		exit(err)
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
	// A second Ctrl-C ends this process immediately; the kernel then ends its children.
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

func run(ctx context.Context, cfg config) error {
	return withCluster(ctx, cfg.dir, func(pg *cluster) { measure(ctx, cfg, pg) })
}

// check ends the measurement at an error, with what was being done.
func check(err error, format string, args ...any) {
	if err != nil {
		demokit.Stop(fmt.Errorf("%s: %w", fmt.Sprintf(format, args...), err))
	}
}

func measure(ctx context.Context, cfg config, pg *cluster) {
	checkProgram(cfg)
	rep := report{machine: describeMachine(ctx, pg), rounds: cfg.rounds, keys: cfg.keys, note: cfg.note}
	rep.results = race(ctx, pg, cfg.rounds, chooseContestants(cfg, pg))
	for _, part := range []struct {
		name    string
		measure func(context.Context, config, *cluster, *report)
	}{
		{"latency", measureLatency}, {"holes", measureHoles}, {"many", measureMany},
	} {
		if cfg.wants(part.name) {
			check(demokit.Try(func() { part.measure(ctx, cfg, pg, &rep) }), "%s", part.name)
		}
	}
	demokit.Must(io.WriteString(os.Stdout, rep.String()))
}

type config struct {
	items      int
	riverItems int
	note       int
	rounds     int
	manyRuns   int
	manyLarge  int
	only       []string
	binary     string
	keys       string
	dir        string
}

func parts() []string {
	return []string{
		"floor", "floor-raw", "tranche", "ordered", "flow", "floor-gather", "gather", "river", "latency", "holes", "many",
	}
}

func (c config) wants(part string) bool { return slices.Contains(c.only, part) }

func parseFlags(args []string, stderr io.Writer) (config, error) {
	var c config
	var only string
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.IntVar(&c.items, "items", 1_000_000, "items of one round of the floor, of tranche and of flow")
	f.IntVar(&c.riverItems, "river-items", 50_000, "jobs of one round of River")
	f.IntVar(&c.note, "note", 0, "bytes of a note that each item has besides its 80, and so has its result")
	f.IntVar(&c.rounds, "rounds", 3, "how often each contestant is measured")
	f.IntVar(&c.manyRuns, "many-runs", 10_000, "runs of 10 items of the part many")
	f.IntVar(&c.manyLarge, "many-large", 5_000_000, "items of the large run of the part many")
	f.StringVar(&only, "only", strings.Join(parts(), ","), "which parts to run")
	f.StringVar(&c.binary, "binary", "../../bin/tranche", "the tranche program to measure")
	f.StringVar(&c.keys, "keys", "ordered", "order of the items' keys in the input: ordered or random")
	f.StringVar(&c.dir, "dir", "/var/tmp", "where PostgreSQL and the nodes have their data while it measures: on a disk, "+
		"as fsync costs nothing in memory")
	if err := f.Parse(args); err != nil {
		return c, err
	}
	if f.NArg() > 0 {
		return c, fmt.Errorf("%q is not a flag; see -help", f.Arg(0))
	}
	c.only = strings.Split(only, ",")
	return c, c.validate()
}

func (c config) validate() error {
	for _, p := range c.only {
		if !slices.Contains(parts(), p) {
			return fmt.Errorf("-only: there is no part %q; the parts are %s", p, strings.Join(parts(), ", "))
		}
	}
	switch {
	case min(c.items, c.riverItems, c.rounds, c.manyRuns, c.manyLarge) < 1:
		return errors.New("-items, -river-items, -rounds, -many-runs and -many-large must be at least 1")
	case c.note < 0:
		return errors.New("-note must not be negative")
	case c.keys != "ordered" && c.keys != "random":
		return fmt.Errorf("-keys is %q; it is ordered or random", c.keys)
	}
	return nil
}
