package embedded

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"go.uber.org/goleak"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tranchehq/tranche/internal/backoff"
)

// childVariable makes this binary, started again by a test, a process that runs the cluster in the directory named and
// waits to be killed.
const childVariable = "TRANCHE_TEST_CHILD_DATADIR"

func TestMain(m *testing.M) {
	if dir := os.Getenv(childVariable); dir != "" {
		os.Exit(asChild(dir))
	}
	code := m.Run()
	end := time.Now().Add(limit)
	for err := goleak.Find(); code == 0 && err != nil; err = goleak.Find() { // as testenv.Main, which imports this package
		if time.Now().After(end) {
			panic(err)
		}
	}
	os.Exit(code)
}

func asChild(dir string) int {
	interrupted, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	pg, err := StartPostgres(context.Background(), PostgresConfig{DataDir: dir, Settings: small()})
	if err != nil {
		_, _ = fmt.Fprintln(os.Stdout, "error:", err)
		return 1
	}
	_, _ = fmt.Fprintln(os.Stdout, "ready", pg.PID())
	<-interrupted.Done()
	if err := pg.Stop(context.Background()); err != nil {
		return 1
	}
	return 0
}

// limit is more than anything here takes on a busy machine.
const limit = 2 * time.Minute

// small keeps many clusters at once light.
func small() map[string]string { return map[string]string{"shared_buffers": "16MB"} }

// dataDir returns a short path that any user may enter, removed when the test ends.
func dataDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "tranche-emb-") //nolint:usetesting // its path is too long for a socket
	noError(t, err)
	t.Cleanup(func() { same(t, os.RemoveAll(dir), nil, "the end of the directory") })
	noError(t, os.Chmod(dir, 0o711))
	return dir
}

func start(t *testing.T, config PostgresConfig) *Postgres {
	t.Helper()
	return must(tryStart(t, config))(t)
}

func tryStart(t *testing.T, config PostgresConfig) (*Postgres, error) {
	t.Helper()
	if config.Settings == nil {
		config.Settings = small()
	}
	pg, err := StartPostgres(t.Context(), config)
	if errors.Is(err, ErrNoBinaries) {
		t.Fatalf("%v\nor let the makefile install it: make deps", err)
	}
	if pg != nil {
		t.Cleanup(func() { stop(t, pg) })
	}
	return pg, err
}

func stop(t *testing.T, pg *Postgres) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	same(t, pg.Stop(ctx), nil, "the stop")
}

// query returns the one value that the statement yields, as text.
func query(t *testing.T, url, sql string) string {
	t.Helper()
	var value string
	err := connect(t.Context(), url, func(c *pgx.Conn) error { return c.QueryRow(t.Context(), sql).Scan(&value) })
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return value
}

func run(t *testing.T, url, sql string) {
	t.Helper()
	err := connect(t.Context(), url, func(c *pgx.Conn) error {
		_, err := c.Exec(t.Context(), sql)
		return err
	})
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func eventually(t *testing.T, within time.Duration, what string, holds func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	for !holds() {
		if backoff.Sleep(ctx, 10*time.Millisecond) != nil {
			t.Fatalf("not within %s: %s", within, what)
		}
	}
}

func observed() (*zap.Logger, *observer.ObservedLogs) {
	core, logs := observer.New(zap.DebugLevel)
	return zap.New(core), logs
}

// mustSay checks that an error for users names what it should.
func mustSay(t *testing.T, err error, words ...string) {
	t.Helper()
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("the error does not say %q: %v", word, err)
		}
	}
}

func as[E error](t *testing.T, err error) E {
	t.Helper()
	found, ok := errors.AsType[E](err)
	if !ok {
		t.Fatalf("got %v, want a %T", err, found)
	}
	return found
}

// same, noError and must are copies from testenv, which imports this package.
func same[T comparable](t *testing.T, got, want T, what string, args ...any) {
	t.Helper()
	if got != want {
		t.Errorf("%s: got %v, want %v", fmt.Sprintf(what, args...), got, want)
	}
}

func noError(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func must[T any](result T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		noError(t, err)
		return result
	}
}
