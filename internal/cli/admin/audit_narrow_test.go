package admin

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/tranchehq/tranche/orchestrator/client"
)

// A narrow terminal shows what changed too.
func TestAuditIsWholeOnANarrowTerminal(t *testing.T) {
	t.Parallel()
	entries := []client.AuditEntry{
		{ID: 2, Actor: "ann", Action: "set", Subject: "echo", Before: json.RawMessage(`{"max_in_flight":500}`),
			After:  json.RawMessage(`{"max_in_flight":100}`),
			Detail: json.RawMessage(`{"reason":"the database behind it was too slow for what we sent \u001b[31m at it"}`)},
		{ID: 1, Actor: "bob", Action: "start", Subject: "x"},
	}
	text := auditText(entries, 80)
	for _, want := range []string{"max_in_flight 500 → 100", "too slow", `\x1b[31m at it`, "bob"} {
		if !strings.Contains(strings.Join(strings.Fields(text), " "), want) {
			t.Errorf("%q is not shown:\n%s", want, text)
		}
	}
	for line := range strings.Lines(text) {
		if utf8.RuneCountInString(strings.TrimSuffix(line, "\n")) > 80 {
			t.Errorf("a line is too long: %s", line)
		}
	}
	if wide := auditText(entries, 0); strings.Count(wide, "\n") != 3 || !strings.Contains(wide, "CHANGE") {
		t.Errorf("where there is room, an entry is a line:\n%s", wide)
	}
}
