package systest

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// Each alert fires when something goes wrong, and goes out when it is fixed. What goes wrong is there at once, since
// the leader reads the database every ten seconds only.
func TestAlertsFireAndGoOut(t *testing.T) {
	t.Parallel()
	w, files := setup(t), t.TempDir()
	o := &office{world: w, binary: testenv.Program(t, root)}
	serve := func(metrics string) *server {
		return o.serve("--metrics-listen", metrics, "--schedule-files", files)
	}
	first, second := serve(testenv.QuietAddr(t)), serve(testenv.QuietAddr(t))
	p := scrape(t, first.metrics, second.metrics)
	nc := testenv.Conn(t, w.ns)
	endService := serveAccounts(t, nc, "dies", "")
	serveAccounts(t, nc, "fails", "*")
	until(t, "a node leads, as Prometheus knows, and nothing is wrong", func() bool {
		var answer struct{ Data struct{ Result []any } }
		p.ask(t, "/api/v1/query?query=tranche_database_scrape_success==1", &answer)
		now := p.firing(t)
		return len(answer.Data.Result) == 1 && now != nil && len(now) == 0
	})

	// A run that fails, a service that dies, a node that dies, and a schedule that is stuck.
	o.mustWith(first, testenv.Accounts(100_000), "run", "start", "--endpoint", "dies", "--items", "-", "--chunk", "10",
		"--rate", "100", "--name", "patient")
	// It is held after some seconds, and its alert goes out then: what takes long is before it.
	o.mustWith(first, testenv.Accounts(2000), "run", "start", "--endpoint", "fails", "--items", "-", "--chunk", "5",
		"--rate", "40", "--max-failed", "300", "--name", "failing")
	p.fires(t, "TrancheItemsFail fails")
	endService()
	release := o.holdSchedule(first, files)
	o.kill(second)
	p.fires(t, "TrancheScheduleLate", "TrancheNodeGone", "TrancheRunHeld", "TrancheNobodyListens dies",
		"TrancheEndpointStalled dies")
	// Nothing is wrong there; for as long as a leader is late with its reading it may look so.
	p.goesOut(t, "TrancheEndpointStalled fails", "TrancheDatabaseUnread", "TrancheDeadLetters")

	// All of it is fixed.
	serve(second.metrics)
	serveAccounts(t, nc, "dies", "")
	o.must(first, "run", "cancel", "failing", "--reason", "the test")
	release()
	o.must(first, "schedule", "pause", "stuck")
	o.must(first, "schedule", "resume", "stuck")
	p.goesOut(t, "TrancheScheduleLate", "TrancheNodeGone", "TrancheRunHeld", "TrancheNobodyListens dies",
		"TrancheEndpointStalled dies", "TrancheItemsFail fails")
}

// holdSchedule makes a schedule that is due, and that someone keeps the leader from: a session that has forgotten to
// commit. release ends it.
func (o *office) holdSchedule(s *server, files string) (release func()) {
	o.Helper()
	testenv.NoError(o, os.WriteFile(filepath.Join(files, "items.csv"), []byte(testenv.Accounts(1)), 0o600))
	o.mustWith(s, "name: stuck\nevery: 1h\nendpoint: dies\nitems: {file: items.csv, key: id}\n", "schedule", "apply",
		"-")
	conn := testenv.Must(pgx.Connect(o.Context(), o.url))(o)
	o.Cleanup(func() { _ = conn.Close(context.Background()) })
	testenv.Must(conn.Exec(o.Context(), `UPDATE schedule SET next_due = tranche_now()`))(o)
	tx, err := conn.Begin(o.Context())
	testenv.NoError(o, err)
	testenv.Must(tx.Exec(o.Context(), `SELECT FROM schedule FOR UPDATE`))(o)
	return func() {
		if err := tx.Rollback(o.Context()); err != nil {
			o.Error(err)
		}
	}
}
