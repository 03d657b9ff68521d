package health_test

import (
	"strings"
	"testing"

	store "github.com/tranchehq/tranche/workqueue/health"
)

// A receiver that could not be told anything for ten minutes is told of, unless its alert is paused.
func TestReceiversThatCannotBeTold(t *testing.T) {
	t.Parallel()
	w := setup(t)
	const sql = `INSERT INTO alert (name, spec, source, state, created_by, changed_by, failures, failing_since, error)
		VALUES ($1, '{}', '', $2, 'a', 'a', 7, tranche_now() - $3::interval, E'mail: no connection\nand what it said')`
	for name, row := range map[string][]any{
		"long": {"long", "active", "11 minutes"}, "short": {"short", "active", "9 minutes"},
		"paused": {"paused", "paused", "1 day"},
	} {
		if _, err := w.pool.Exec(t.Context(), sql, row...); err != nil {
			t.Fatal(name, err)
		}
	}
	report, err := w.watch.Report(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []store.Condition
	for _, c := range report.Conditions {
		if c.Kind == store.AlertFailing {
			got = append(got, c)
		}
	}
	if len(got) != 1 || got[0].Subject != "long" || got[0].Severity != store.Warning ||
		!strings.Contains(got[0].Detail, "7 attempts") || !strings.Contains(got[0].Detail, "mail: no connection.") {
		t.Errorf("%+v", got)
	}
}
