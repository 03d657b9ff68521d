package storetest

import (
	"errors"
	"strings"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
)

// Wish is what the operator ann wants of a run.
func Wish(run workqueue.RunID, reason string) control.Control {
	return control.Control{Run: run, Reason: reason, Actor: "ann"}
}

// PauseRun pauses a run.
func (b *Bench) PauseRun(run workqueue.RunID) control.Controlled {
	b.Helper()
	out, err := control.New(b.Store).Pause(b.Context(), Wish(run, "the service is sick"))
	if err != nil {
		b.Fatal(err)
	}
	return out
}

// Set changes a run.
func (b *Bench) Set(c control.RunChange) control.RunChanged {
	b.Helper()
	c.Actor = "ann"
	out, err := control.New(b.Store).SetRun(b.Context(), c)
	if err != nil {
		b.Fatal(err)
	}
	return out
}

// Actions lists what the audit log has of a run: "pause by ann".
func (b *Bench) Actions(run workqueue.RunID) []string {
	b.Helper()
	var all []string
	err := b.Pool.QueryRow(b.Context(), `SELECT coalesce(array_agg(action || ' by ' || actor ORDER BY id), '{}')
		FROM audit_log WHERE run_id = $1`, run).Scan(&all)
	if err != nil {
		b.Fatal(err)
	}
	return all
}

// Events lists the kinds of a run's events.
func (b *Bench) Events(run workqueue.RunID) []string {
	b.Helper()
	var all []string
	err := b.Pool.QueryRow(b.Context(), `SELECT coalesce(array_agg(kind ORDER BY at, id), '{}')
		FROM run_event WHERE run_id = $1`, run).Scan(&all)
	if err != nil {
		b.Fatal(err)
	}
	return all
}

// WantRefused wants a StateError that says all of it.
func (b *Bench) WantRefused(err error, parts ...string) {
	b.Helper()
	if _, ok := errors.AsType[*workqueue.StateError](err); !ok {
		b.Errorf("%v; want a StateError", err)
		return
	}
	for _, part := range parts {
		if !strings.Contains(err.Error(), part) {
			b.Errorf("the refusal %q does not say %q", err, part)
		}
	}
}
