package main

import (
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/orchestrator/client"
)

func TestWhatPeopleMustDoByHand(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.wantSoon([]string{"nodes"}, "NODE", "live", "leader")
	b.want(b.tranche("nodes", "--json"), 0, `"nodes": [`)
	b.want(b.tranche("health", "--json"), 0, `"conditions": `)
	b.want(b.pipe(people, "run", "start", "--endpoint", "echo", "--items", "-", "--name", "it"), 0, "started")
	b.want(b.tranche("run", "items", "it", "--from", "1", "--limit", "1"), 0, "ORDINAL", "--after 1")
	b.want(b.tranche("run", "items", "it", "--state", "odd"), 2, "--state")
	b.want(b.tranche("run", "items", "it", "--limit", "0"), 2, "--limit")
	b.want(b.tranche("run", "slices", "it"), 0, "scheduled", "sent")
	b.want(b.tranche("run", "slices", "nope"), 1, "tranche run list")
}

func TestHealthReadsWell(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	h := &client.Health{Status: "critical", At: now, Counts: client.SeverityCounts{Critical: 1, Warning: 1},
		Conditions: []client.Condition{
			{Severity: "critical", Title: "nobody leads", Subject: "tranche", Since: now.Add(-time.Minute),
				Detail: "since the last \x1b[31mleader died", Remedy: "start a node"},
			{Severity: "warning", Title: "items failed", Subject: "it", Since: now, Detail: "3 of them", Remedy: "see why"},
		}}
	text := healthText(h, 80)
	for _, want := range []string{"critical: 1 critical, 1 warning, ", "CRITICAL nobody leads", "1m00s ago", `\x1b[31m`,
		"start a node", "WARNING items failed"} {
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
