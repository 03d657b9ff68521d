package admin

import (
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue/doctor"
)

// An invariant is told in words, whether it holds or not.
func TestInvariantsHaveWords(t *testing.T) {
	t.Parallel()
	holds := reportText(&doctor.Report{})
	for _, rule := range doctor.Rules() {
		line := string(rule.Invariant) + " "
		bad := reportText(&doctor.Report{Found: 1,
			Violations: []doctor.Violation{{Invariant: rule.Invariant, What: "it is"}}})
		if rule.Words == "" || !strings.Contains(holds, rule.Words) || !strings.Contains(holds, line) ||
			!strings.Contains(bad, rule.Words) {
			t.Errorf("%s has no words in\n%s%s", rule.Invariant, holds, bad)
		}
	}
}

func TestHealthReadsWell(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	until := now.Add(8 * time.Hour)
	h := &client.Health{Status: "critical", At: now, Counts: client.SeverityCounts{Critical: 1, Warning: 2},
		Kinds: []client.KindSummary{
			{Kind: "leader_missing", Severity: "critical", Title: "Leader missing: 1 condition"},
			{Kind: "failed_items", Severity: "warning", Title: "Failed items: 2 runs, 1,003 items", Since: now},
		},
		Conditions: []client.Condition{
			{Kind: "leader_missing", Severity: "critical", Title: "nobody leads", Subject: "tranche",
				Since: now.Add(-time.Minute), Detail: "since the last \x1b[31mleader died",
				Remedy: "start a node: `tranche serve --data-dir /var/lib/tranche --listen 127.0.0.1:8080 --name one`"},
			{Kind: "failed_items", Severity: "warning", Title: "3 items failed: it", Subject: "it", Since: now,
				Remedy: "see why", Mark: &client.Mark{State: "taken", By: "ann", At: now.Add(-time.Minute)}},
			{Kind: "failed_items", Severity: "warning", Title: "1000 items failed: more", Subject: "more", Since: now,
				Remedy: "see why", Mark: &client.Mark{State: "worse", By: "bob", At: now, Reason: "known"}},
		},
		Aside: []client.Condition{{Kind: "dead_letters", Title: "2 dead letters of e", Subject: "e",
			Mark: &client.Mark{State: "aside", By: "eve", At: now, Until: &until, Reason: "until the release"}}},
	}
	text := healthText(h, 80)
	for _, want := range []string{"critical: 1 critical, 2 warnings, ", "CRITICAL nobody leads", "1m00s ago", `\x1b[31m`,
		"start a node:\n", "`tranche serve --data-dir /var/lib/tranche --listen 127.0.0.1:8080 --name one`\n",
		"WARNING Failed items: 2 runs, 1,003 items", "3 items failed: it", "by ann, 1m00s ago",
		"since it was put aside by bob", "PUT ASIDE", "dead_letters e", ": until the release"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if text := healthText(&client.Health{Status: "ok", At: now}, 80); !strings.HasPrefix(text, "ok: nothing") {
		t.Errorf("without conditions: %s", text)
	}
	text = nodesText(&client.Nodes{Nodes: []client.NodeView{{Session: "0198", State: "dead"}}}, 200)
	if !strings.Contains(text, "nobody leads") {
		t.Errorf("without a leader: %s", text)
	}
}
