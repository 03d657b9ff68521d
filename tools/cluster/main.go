// Command cluster is make cluster: three Tranche machines as in docs/operate/deploy.md, simulated on three loopback
// addresses, with faults injected one at a time during a run. It is not part of a release.
//
//	cluster [flags]          everything; exit code 0 if nothing was lost
//	cluster service NAME     one of the services, for internal use
//
// It uses the commands and files of that page, changing only addresses, paths and passwords: nats-servers with the
// accounts of tranche nats config, a PostgreSQL primary with a synchronous standby, three nodes, and two instances of
// each of two services.
//
// It succeeds only if each fault occurred during the run, the run continued after it, every item is done with a
// result that a service recorded in its ledger before answering, and tranche doctor finds nothing. It stops all that
// it started, and on Linux, which it requires, even when it is killed. It promotes standbys itself, like an operator.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"

	"go.uber.org/zap"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	err := start(ctx)
	stop()
	if errors.Is(err, context.Canceled) {
		err = errors.New("interrupted; everything that was started ended")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "cluster:", err)
		os.Exit(1)
	}
}

func start(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	if len(os.Args) == 3 && os.Args[1] == "service" {
		log, err := zap.NewProduction()
		if err != nil {
			return err
		}
		return runService(ctx, os.Args[2], log)
	}
	s := settings{self: self}
	flag.IntVar(&s.items, "items", 200_000, "the size of the run")
	flag.StringVar(&s.dir, "dir", "", "where logs and ledgers go")
	flag.StringVar(&s.repository, "repository", ".", "where docs and deploy are")
	flag.StringVar(&s.tranche, "tranche", "bin/tranche", "the program")
	flag.StringVar(&s.next, "next", "bin/tranche-next", "its next version")
	flag.StringVar(&s.nats, "nats-server", "bin/nats-server", "NATS's server")
	flag.Parse()
	if err := s.check(); err != nil {
		return err
	}
	return show(ctx, s)
}

const (
	minItems = 5_000
	maxItems = 10_000_000

	// paced is how long the run would take without removeLimits.
	paced = 240 // seconds
)

type settings struct {
	items      int
	dir        string // of logs and ledgers; empty: a new one under the user's data directory
	repository string // with docs and deploy
	// The current and next version of the program, nats-server, and this program, which also runs the services.
	tranche, next, nats, self string
}

func (s *settings) check() error {
	if runtime.GOOS != "linux" {
		return errors.New("cluster needs Linux, where all of 127.0.0.0/8 is local")
	}
	if s.items < minItems || s.items > maxItems {
		return fmt.Errorf("--items must be %[2]d to %[3]d, got %[1]d", s.items, minItems, maxItems)
	}
	for _, needed := range []*string{&s.repository, &s.tranche, &s.next, &s.nats, &s.self} {
		path, err := filepath.Abs(*needed)
		if err == nil {
			_, err = os.Stat(path)
		}
		if err != nil {
			return fmt.Errorf("a program is missing: %w; make cluster builds it", err)
		}
		*needed = path
	}
	return nil
}

// rate is the items per second allowed for each step during faults.
func (s settings) rate() int { return s.items / paced }

// chunk is small enough for ten recordings per second, so that a standstill is noticed.
func (s settings) chunk() int { return max(1, s.rate()/10) }
