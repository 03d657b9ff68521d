package admin

import (
	"strings"
	"testing"

	"github.com/tranchehq/tranche/orchestrator/client"
)

// What a collector says of errors, and what it sends along, is shown.
func TestCollectorShowTellsOfAllSettings(t *testing.T) {
	t.Parallel()
	c := &client.CollectorView{Spec: client.CollectorSpec{Params: map[string]string{"year": "2026", "branch": "R&D\x1b"},
		RetryCodes: []string{"LOCKED", "BUSY"}, NeverRetry: []string{"GONE"}, Fold: "merge", FoldBy: "no",
		Enrich: &client.Enrichment{SQL: []byte(`{"source":"crm"}`), Payload: []byte(`"{item}"`)}}}
	head := collectorHead(c)
	for _, want := range []string{"branch=R&D", "year=2026", "LOCKED, BUSY, whatever the service says", "GONE, whatever",
		"those of the same payload's no go as one, with their payloads merged", `"{item}", with a row of source crm`} {
		if !strings.Contains(head, want) {
			t.Errorf("it does not tell of %q:\n%s", want, head)
		}
	}
	if strings.Contains(head, "\x1b") || strings.Index(head, "branch=") > strings.Index(head, "year=") {
		t.Errorf("it is shown as %q", head)
	}
	if head := collectorHead(&client.CollectorView{}); strings.Contains(head, "tried again") ||
		strings.Contains(head, "param") {
		t.Errorf("a collector without them is shown as\n%s", head)
	}
}
