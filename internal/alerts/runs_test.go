package alerts_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/alerts"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	store "github.com/tranchehq/tranche/workqueue/health"
)

// A completion is reported once in each generation, also when it was committed late, and none from before the rule.
func TestCompletionsAreToldOnce(t *testing.T) {
	t.Parallel()
	b, host := withReceiver(t)
	b.complete(b.run("before", "p", nil), 1, 0)
	b.apply("r", "when: {runs: [completed]}\nplans: [p]\n"+host.rule())
	d, lease := b.task(), b.lease()
	run, late := b.run("one", "p", nil), b.run("late", "p", nil)
	b.complete(b.run("other", "another plan", nil), 1, 0)
	b.complete(run, 1, 3)
	for range 3 {
		b.turn(d, lease)
	}
	b.complete(late, 1, 2)
	b.exec(`UPDATE alert SET since = since - interval '1 hour'`)
	b.exec(`UPDATE run_event SET at = at - interval '2 minutes', payload = payload || '{"accepted": 2}' WHERE run_id = $1`,
		late)
	b.exec(`DELETE FROM run_event WHERE run_id = (SELECT id FROM batchrun WHERE name = 'before')`)
	b.turn(d, lease)
	b.complete(run, 2, 0)
	for range 3 {
		b.turn(d, lease)
	}
	var got []string
	for _, m := range host.told(t) {
		got = append(got, fmt.Sprintf("%s %s", m.Severity, m.Title))
	}
	want := []string{"warning Completed, 3 items failed: run one", "info Completed: run late", "info Completed: run one"}
	testenv.SameList(t, got, want, "it was reported")
}

// However many runs complete at one time, a look reads them all, so that the next one gets further.
func TestManyCompletionsAreRead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`INSERT INTO run_event (id, run_id, generation, kind, payload)
		SELECT gen_random_uuid(), $1, n, 'completed', '{}' FROM generate_series(1, 20001) n`, b.run("r", "p", nil))
	done, until, err := b.store.Completions(t.Context(), time.Now().Add(-5*time.Minute))
	testenv.NoError(t, err)
	testenv.Same(t, len(done), 20_001, "completions, until %s", until)
}

// A rule tells what is about its plans and endpoints, and of a run in one place only.
func TestRunsOfPlansAndEndpoints(t *testing.T) {
	t.Parallel()
	b, host := withReceiver(t)
	b.run("canary", "year-end", "canary")
	b.run("mine", "year-end", "operator")
	other := b.run("other", "another", "threshold")
	b.exec(`INSERT INTO run_step (run_id, step, name, kind, endpoint, chunk, in_flight, max_attempts, request_timeout,
		retry_backoff) VALUES ($1, 0, 's', 'endpoint', 'compose', 100, 4, 3, '1 minute', '1 second')`, other)
	b.exec(`INSERT INTO namespace (name) VALUES ('team-a')`)
	b.exec(`UPDATE batchrun SET namespace = 'team-a' WHERE id = $1`, other)
	late := b.run("late", "year-end", nil)
	b.exec(`UPDATE batchrun SET opened = true, sealed_at = NULL, seal_deadline = tranche_now() - interval '1 hour'
		WHERE id = $1`, late)
	for name, rule := range map[string]string{
		"plan":     "when: {runs: [paused, waits_for_approval, overdue], health: info}\nplans: [year-end]\n",
		"endpoint": "when: {runs: [paused], health: info}\nendpoints: [compose]\n",
		"all":      "when: {runs: [paused]}\n",
		"team":     "when: {runs: [paused], health: info}\nnamespaces: [team-a]\n",
		"neither":  "when: {runs: [paused], health: info}\nnamespaces: [team-a]\nplans: [year-end]\n",
	} {
		b.apply(name, rule+host.rule())
	}
	d, lease := b.task(), b.lease()
	b.says(condition("compose", store.Critical), condition("elsewhere", store.Critical))
	b.look(d, lease)
	b.sendUntil(d, lease, "all was reported", func() bool { return host.count() >= 7 })
	b.send(d, lease)
	var got []string
	for _, m := range host.told(t) {
		got = append(got, m.Alert+": "+m.Title)
	}
	slices.Sort(got)
	want := []string{
		"all: 2 runs are paused", "endpoint: No service listens on endpoint compose",
		"endpoint: Paused, too many items failed: run other", "plan: Canary waits for approval: run canary",
		"plan: Not sealed before its deadline: run late", "plan: Paused by ann: run mine",
		"team: Paused, too many items failed: run other",
	}
	testenv.SameList(t, got, want, "it was reported")
}

// What a rule reports of a run does not hide what health says of it otherwise, and failed items are reported once.
func TestOtherConditionsOfARun(t *testing.T) {
	t.Parallel()
	b, host, d, lease := withRule(t, "when: {runs: [overdue, completed, deadline_at_risk], health: warning}\n")
	run, failed := b.run("mine", "p", nil), b.run("failed", "p", nil)
	of := func(kind store.Kind, subject, title string) store.Condition {
		c := condition("x", store.Warning)
		c.Kind, c.Subject, c.Title = kind, subject, title
		return c
	}
	held := of(store.RunHeld, run.String(), "held")
	b.says(held)
	b.turn(d, lease)
	b.exec(`UPDATE batchrun SET opened = true, sealed_at = NULL, seal_deadline = tranche_now() - interval '1 hour'
		WHERE id = $1`, run)
	b.complete(failed, 1, 3)
	b.says(held, of(store.FailedItems, failed.String(), "failed as health"), of(store.RunAtRisk, run.String(), "late"))
	b.look(d, lease)
	b.sendUntil(d, lease, "all was reported", func() bool { return host.count() >= 4 })
	b.turn(d, lease)
	var got []string
	for _, m := range host.told(t) {
		got = append(got, m.Title)
	}
	slices.Sort(got)
	want := []string{"Completed, 3 items failed: run failed", "Not sealed before its deadline: run mine", "held", "late"}
	testenv.SameList(t, got, want, "it was reported")
}

// A test is sent immediately, also by a paused rule and in the middle of a pause, and is tried once.
func TestATestIsTriedOnce(t *testing.T) {
	t.Parallel()
	b, host := withReceiver(t, 500)
	b.apply("r", "when: {runs: [paused]}\n"+host.rule())
	testenv.Must(b.store.Set(t.Context(), "r", "paused", "ann"))(t)
	d := b.task(func(_ *alerts.Config, c *alerts.TaskConfig) { c.FirstRetry = time.Hour })
	lease := b.lease()
	for want := 1; want <= 2; want++ {
		body := testenv.Must(alerts.TestMessage("r", time.Now()))(t)
		testenv.Must(b.store.Test(t.Context(), "r", body, "ann"))(t)
		b.send(d, lease)
		testenv.MustSame(t, host.count(), want, "times it was reported")
	}
	got := b.messages("r")
	if got[0].State != "delivered" || got[1].State != "given_up" || got[1].Attempts != 1 ||
		!strings.Contains(got[1].Error, "answers 500") || b.alert("r").FailingSince != nil {
		t.Errorf("%+v", got)
	}
}

// What someone has muted is reported by no alert, neither as health nor as a run, and not as over either; when it gets
// worse it is reported as what begins.
func TestWhatIsPutAsideIsNotTold(t *testing.T) {
	t.Parallel()
	b, host, d, lease := withRule(t, "when: {runs: [paused], health: warning}\n")
	run := b.run("mine", "p", "operator")
	known, held := condition("known", store.Warning), condition("x", store.Info)
	held.Kind, held.Subject = store.RunHeld, run.String()
	b.says(known)
	b.muted(held)
	b.look(d, lease)
	b.sendUntil(d, lease, "what is not muted was reported", func() bool { return host.count() >= 1 })
	b.says()
	b.muted(known, held)
	b.turn(d, lease)
	b.says(known)
	b.muted(held)
	b.look(d, lease)
	b.sendUntil(d, lease, "it was reported again", func() bool { return host.count() >= 2 })
	for _, m := range host.told(t) {
		if m.Title != "No service listens on endpoint known" || m.Status != "begun" {
			t.Errorf("it was reported %s: %s", m.Status, m.Title)
		}
	}
}

func (b *bench) muted(conditions ...store.Condition) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range conditions {
		conditions[i].Mark = &store.Mark{State: "muted", By: "ann"}
	}
	b.report.Muted = conditions
}
