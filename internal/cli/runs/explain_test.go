package runs

import (
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/health"
)

func TestAnExplanationReadsWell(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	since, next := now.Add(-90*time.Second), now.Add(30*time.Second)
	resume := client.Advice{Do: "let it go on", Command: "tranche run resume R"}
	e := &client.Explanation{Run: workqueue.NewRunID().String(), Plan: "year-end\x1b[31m",
		State: "running", Items: 1_000_000,
		Done: 999_588, Missing: 412, At: now, Summary: "412 of 1,000,000 items are missing: waiting for a service",
		Last: &client.Happening{At: since, What: "a request was published"},
		Groups: []client.MissingGroup{{
			State: "sent", Reason: string(health.ReasonNoListener), Items: 412, Slices: 2, Step: "s", Endpoint: "statement",
			Owner: client.OwnerOperator, Who: "whoever runs the services of endpoint statement",
			Why: strings.Repeat("nobody listens on it ", 12), Since: &since, Next: "somebody takes them", When: &next,
			Advice: []client.Advice{{Do: "start a service", Command: "tranche  endpoints show statement"}},
		}, {
			State: "ready", Reason: string(health.ReasonOperator), Items: 3, Owner: client.OwnerOperator, Who: "whoever",
			Steps:  []client.StepPart{{Step: "a", Items: 3}, {Step: "b", Items: 2}},
			Advice: []client.Advice{resume, {Do: "or, when its data is wrong, correct that", Command: "tranche run correct"}},
		}, {
			State: "held", Reason: string(health.ReasonOperator), Items: 1, Owner: client.OwnerOperator, Who: "whoever",
			Advice: []client.Advice{resume},
		}},
		Notes: []string{"the run is paused; go on with: `tranche run resume 0198f6b1-7c8e-7000-8000-000000000000`"},
	}
	for _, room := range []int{0, 60, 80, 200} {
		text := cli.ExplanationText(e, room)
		lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
		if !strings.HasPrefix(lines[0], "412 of 1,000,000 items are missing") {
			t.Errorf("it does not begin with what matters: %s", lines[0])
		}
		for _, line := range lines {
			if len([]rune(line)) > cli.ExplainWidth(room) && !strings.Contains(line, "year-end") &&
				!strings.Contains(line, "`tranche run resume") {
				t.Errorf("in %d columns a line has %d: %s", room, len(line), line)
			}
		}
		if strings.Count(text, resume.Command+"\n") != 1 || strings.Contains(text, "or        or") ||
			strings.Index(text, resume.Command) > strings.Index(text, "\nrun ") {
			t.Errorf("what to do does not stand first, once:\n%s", text)
		}
		if _, command, _ := strings.Cut(e.Notes[0], "`"); !strings.Contains(text, "`"+command) {
			t.Errorf("in %d columns a command is broken:\n%s", room, text)
		}
		for _, want := range []string{
			"  steps     a 3, b 2\n", "412 items sent in 2 requests: no listener", "operator: whoever runs", "1m30s ago",
			"in 30s (",
			"\n            tranche  endpoints show statement\n", `year-end\x1b[31m`,
		} {
			if room != 60 && !strings.Contains(text, want) {
				t.Errorf("no %q in\n%s", want, text)
			}
		}
	}
}
