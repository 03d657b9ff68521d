package metrics

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// Each alert fires when something goes wrong, and goes out when it is mended. What goes wrong is there at once, since
// the leader reads the database every ten seconds only.
func TestAlertsFireAndGoOut(t *testing.T) {
	t.Parallel()
	w := setup(t)
	first := w.serve(t, testenv.QuietAddr(t))
	second := w.serve(t, testenv.QuietAddr(t))
	p := watch(t, first.metrics, second.metrics)
	endService := w.service(t, "dies", false)
	w.service(t, "fails", true)
	until(t, "a node leads, as Prometheus knows, and nothing is wrong", func() bool {
		var answer struct{ Data struct{ Result []any } }
		p.ask(t, "/api/v1/query?query=tranche_reading_success==1", &answer)
		now := p.firing(t)
		return len(answer.Data.Result) == 1 && now != nil && len(now) == 0
	})

	// A run that fails, a service that dies, a node that dies, and a schedule that is stuck.
	w.command(t, first, testenv.Accounts(100_000), "run", "start", "--endpoint", "dies", "--items", "-", "--chunk", "10",
		"--rate", "100", "--name", "patient")
	// It is held after some seconds, and its alert goes out then: what takes long is before it.
	w.command(t, first, testenv.Accounts(2000), "run", "start", "--endpoint", "fails", "--items", "-", "--chunk", "5",
		"--rate", "40", "--max-failed", "300", "--name", "failing")
	p.fires(t, "TrancheItemsFail fails")
	endService()
	release := w.holdSchedule(t, first)
	second.kill()
	p.fires(t, "TrancheScheduleLate", "TrancheNodeGone", "TrancheRunHeld", "TrancheNobodyListens dies",
		"TrancheEndpointStandsStill dies")
	// Nothing is wrong there; for as long as a leader is late with its reading it may look so.
	p.goesOut(t, "TrancheEndpointStandsStill fails", "TrancheDatabaseUnread", "TrancheDeadLetters")

	// All of it is mended.
	w.serve(t, second.metrics)
	w.service(t, "dies", false)
	w.command(t, first, "", "run", "cancel", "failing", "--reason", "the test")
	release()
	w.command(t, first, "", "schedule", "pause", "stuck")
	w.command(t, first, "", "schedule", "resume", "stuck")
	p.goesOut(t, "TrancheScheduleLate", "TrancheNodeGone", "TrancheRunHeld", "TrancheNobodyListens dies",
		"TrancheEndpointStandsStill dies", "TrancheItemsFail fails")
}

// holdSchedule makes a schedule that is due, and that somebody keeps the leader from: a session that has forgotten to
// commit. release ends it.
func (w *world) holdSchedule(t *testing.T, n *node) (release func()) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(w.files, "items.csv"), []byte(testenv.Accounts(1)), 0o600); err != nil {
		t.Fatal(err)
	}
	w.command(t, n, "name: stuck\nevery: 1h\nendpoint: dies\nitems: {file: items.csv, key: id}\n", "schedule", "apply",
		"-")
	conn, err := pgx.Connect(t.Context(), w.database)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	if _, err := conn.Exec(t.Context(), `UPDATE schedule SET next_due = tranche_now()`); err != nil {
		t.Fatal(err)
	}
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tx.Exec(t.Context(), `SELECT FROM schedule FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := tx.Rollback(t.Context()); err != nil {
			t.Error(err)
		}
	}
}
