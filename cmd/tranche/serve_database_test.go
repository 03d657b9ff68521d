package main

import (
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/internal/testenv"
)

// A serve that starts before its PostgreSQL, which was killed and has to recover, waits for it.
func TestServeWaitsForPostgreSQL(t *testing.T) {
	t.Parallel()
	cluster := testenv.Postgres(t)
	cluster.Kill(t)
	s := launch(t, false, "--database", cluster.URL(), "--nats", testenv.NATS(t).URL(), "--database-wait", "10m")
	eventually(t, "serve says what it waits for", func() bool {
		return strings.Contains(s.log.String(), "PostgreSQL is not there; waiting for it, up to 10m00s in all")
	})
	cluster.Start(t)
	s.ready(t)
	if _, err := s.End(t); err != nil {
		t.Errorf("serve ended with %v: %s", err, s.log.String())
	}
}

// One that is never there ends the start, and a signal the wait.
func TestServeDoesNotWaitForEver(t *testing.T) {
	t.Parallel()
	const nowhere = "postgres://u:p@127.0.0.1:1/x?sslmode=disable"
	s := launch(t, false, "--database", nowhere, "--database-wait", "200ms")
	const says = "127.0.0.1:1/x: PostgreSQL is not there, and was waited for 0.2s (--database-wait)"
	err := s.Wait()
	if err == nil || s.ProcessState.ExitCode() != cli.ExitOther || !strings.Contains(s.log.String(), says) {
		t.Errorf("it ended with %v: %s", err, s.log.String())
	}
	s = launch(t, false, "--database", nowhere)
	eventually(t, "serve waits", func() bool { return strings.Contains(s.log.String(), "up to 2m00s in all") })
	if _, err := s.End(t); err != nil || !strings.Contains(s.log.String(), "stopped before it had begun") {
		t.Errorf("it was stopped, and ended with %v: %s", err, s.log.String())
	}
}
