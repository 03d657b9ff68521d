// Package testenv gives tests a real PostgreSQL and a real NATS, cheaply. A package whose tests use PostgreSQL has:
//
//	func TestMain(m *testing.M) { testenv.Main(m) }
//
// The first test that needs a database starts one private cluster per test binary, fast but not durable, with the
// schema migrated into a template. [Database] clones it for a test in about 60 ms. [Pool] takes a clone that another
// test has returned, emptied, with its connections, in about 15 ms. Tests may run in parallel.
// [NATS] makes an account per test on the binary's server; [OwnNATS] runs a server for one test. [Postgres] is a
// cluster for one test, with production durability, which may be stopped, killed and restarted. [NewProxy] breaks
// connections.
//
// Under testenv/withpostgres, as in make test, all binaries use one cluster.
//
// Without PostgreSQL the tests fail and name the remedy; they never skip. At its end the binary removes everything.
// If it is killed, its servers die with it (on Linux), and a later binary removes their files. One migrated cluster
// stays in the user's cache for an hour, for other binaries to copy.
package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
)

const (
	// databaseVariable has the superuser's URL of the server of [WithPostgres].
	databaseVariable = "TRANCHE_TEST_DATABASE"
	// versionVariable names the required major version of the server, found in embedded.BinariesVariable.
	versionVariable = "PG"

	stopTimeout = time.Minute
)

// Main runs the package's tests, stops shared servers, checks for leaked goroutines, and exits.
func Main(m *testing.M, ignore ...goleak.Option) {
	os.Exit(run(m, ignore))
}

func run(m *testing.M, ignore []goleak.Option) int {
	code := m.Run()
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	err := errors.Join(shared.stop(ctx), os.RemoveAll(program.dir))
	if sharedNATS.stop != nil {
		err = errors.Join(err, sharedNATS.stop())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "testenv:", err)
		code = max(code, 1)
	}
	if code != 0 {
		return code // a failed test may leave goroutines
	}
	limit := time.Now().Add(stopTimeout)
	for {
		err := goleak.Find(ignore...) // it waits a little itself
		if err == nil {
			return 0
		}
		if time.Now().After(limit) {
			fmt.Fprintln(os.Stderr, "goroutines left running:", err)
			return 1
		}
	}
}
