// Command cluster is make cluster: three machines of Tranche as docs/operate/deploy.md has them, here three addresses
// of the loopback, broken one thing after the other under a run. It is no part of a release.
//
//	cluster [flags]          all of it; exit code 0 when nothing was lost
//	cluster service NAME     one of the services, for the first
//
// It reads the commands and files of that page and uses them unchanged, except for addresses, paths and passwords:
// nats-servers with the accounts that tranche nats config writes, a PostgreSQL primary with a synchronous standby,
// three nodes, two instances of each of two services, and Prometheus where it is installed.
//
// It succeeds only when each fault came while the run was in progress, the run went on after it, every item is done
// with a result that a service noted in its ledger before it answered, and tranche doctor finds nothing. All that it
// starts has ended when it ends, and on Linux, which it needs, also when it is killed. It promotes standbys by hand, as
// an operator would.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
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
		err = errors.New("interrupted; everything that was started has ended")
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
	s.prometheus, _ = exec.LookPath("prometheus") // it is not needed
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

	// paced is for how long the run would go on, were it not let go after the faults.
	paced = 240 // seconds
)

// settings are what the flags say.
type settings struct {
	items      int
	dir        string // of logs and ledgers; empty: a fresh one under the user's data directory
	repository string // with docs and deploy
	// The program in this version and the next one, nats-server, and this program, which is the services, too.
	tranche, next, nats, self string
	prometheus                string // empty: there is none
}

func (s *settings) check() error {
	if runtime.GOOS != "linux" {
		return errors.New("it needs Linux, where each address of 127.0.0.0/8 is this machine's")
	}
	if s.items < minItems || s.items > maxItems {
		return fmt.Errorf("--items is %d; it must lie between %d and %d", s.items, minItems, maxItems)
	}
	for _, needed := range []*string{&s.repository, &s.tranche, &s.next, &s.nats, &s.self} {
		path, err := filepath.Abs(*needed)
		if err == nil {
			_, err = os.Stat(path)
		}
		if err != nil {
			return fmt.Errorf("what is to be shown is not there: %w; make cluster builds it", err)
		}
		*needed = path
	}
	return nil
}

// rate is how many items a second each step may do while things break.
func (s settings) rate() int { return s.items / paced }

// chunk is small enough that something is recorded ten times a second, so that a standstill is seen.
func (s settings) chunk() int { return max(1, s.rate()/10) }
