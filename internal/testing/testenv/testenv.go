// Package testenv gives tests a real PostgreSQL and a real NATS, cheaply.
//
// A package whose tests use PostgreSQL says so once:
//
//	func TestMain(m *testing.M) { testenv.Main(m) }
//
// The first test that asks for a database starts one private cluster for the test binary, made for speed and not for
// safety, with the schema migrated into a template. [Database] and [Pool] hand each test its own clone of that, in
// about 20 ms; tests may run in parallel. [NATS] hands each test an account on the binary's server, [OwnNATS] runs one
// for a test alone. [Postgres] is a cluster for one test that may be stopped, killed and restarted, with the durable
// settings of a real one. [NewProxy] breaks connections.
//
// With TRANCHE_TEST_DATABASE set to the URL of a superuser, the clones are made on that server instead.
//
// When PostgreSQL is not installed the tests fail and name the remedy; they never skip. Nothing is left behind: when
// the binary ends everything is removed; when it is killed its servers die with it (on Linux), and a later binary
// removes their files. One migrated cluster is kept in the user's cache for an hour, for other binaries to copy.
package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/tranchehq/tranche/internal/testing/testenv/leak"
)

const (
	// databaseVariable names the superuser's URL of a server to use instead of a private one.
	databaseVariable = "TRANCHE_TEST_DATABASE"
	// versionVariable is the major version that the server must be of; embedded.BinariesVariable says where it is.
	versionVariable = "PG"

	stopTimeout = time.Minute
)

// Main runs the package's tests, stops what they shared, looks for goroutines left running, and exits.
func Main(m *testing.M, ignore ...goleak.Option) {
	os.Exit(run(m, ignore))
}

func run(m *testing.M, ignore []goleak.Option) int {
	code := m.Run()
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if err := errors.Join(shared.stop(ctx), sharedNATS.stop(), os.RemoveAll(program.dir)); err != nil {
		fmt.Fprintln(os.Stderr, "testenv:", err)
		code = max(code, 1)
	}
	return leak.Check(code, ignore...)
}
