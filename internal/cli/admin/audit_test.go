package admin

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

func TestAuditChange(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ before, after, detail, want string }{
		{`{"chunk":500}`, `{"chunk":100}`, `{}`, "chunk 500 → 100"},
		{`{"a":1,"b":"x","same":2}`, `{"b":"y","c":true,"same":2}`, `{}`, "a 1 → none, b x → y, c none → yes"},
		{`{"hold":null}`, `{"hold":"operator"}`, `{"reason":"lunch","by":""}`, "hold none → operator, reason lunch"},
		{"", "", `{"items":3,"failed":true,"keys":0,"codes":null,"force":false}`, "failed yes, items 3"},
		{`{"auto":true}`, `{"auto":false}`, `{"codes":["A","B"]}`, `auto yes → no, codes ["A","B"]`},
		{`{"\u001b[31m":"a"}`, `{"\u001b[31m":"\u001b[1m"}`, `"odd"`, `\x1b[31m a → \x1b[1m`},
		{"", "", `{"long":"` + strings.Repeat("x", 500) + `"}`, "long " + strings.Repeat("x", 500)},
		{`{"hold":null}`, `{"hold":"operator","by":"ann","detail":"lunch"}`,
			`{"reason":"lunch","by":"ann","hold":"operator"}`, "detail none → lunch, hold none → operator"},
		{`{"generation":1}`, `{"generation":2}`, `{"generation":2,"items":3}`, "generation 1 → 2, items 3"},
		{"", `{"plan":"p","chunk":500,"rate":0}`, `{"plan":"p"}`, "chunk 500, plan p, rate 0"},
		{"", "", "", ""},
	} {
		e := client.AuditEntry{
			Actor: "ann", Before: json.RawMessage(c.before), After: json.RawMessage(c.after), Detail: json.RawMessage(c.detail),
		}
		if got := auditChange(&e); got != c.want {
			t.Errorf("%s → %s (%s): got %q; want %q", c.before, c.after, c.detail, got, c.want)
		}
	}
}

func TestPastTime(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Time{
		"2026-01-31":           time.Date(2026, 1, 31, 0, 0, 0, 0, time.Local),
		"2026-01-31 15:04":     time.Date(2026, 1, 31, 15, 4, 0, 0, time.Local),
		"2026-01-31T15:04:05":  time.Date(2026, 1, 31, 15, 4, 5, 0, time.Local),
		"2026-01-31T15:04:05Z": time.Date(2026, 1, 31, 15, 4, 5, 0, time.UTC),
	} {
		var p cli.PastTime
		if err := p.UnmarshalText([]byte(text)); err != nil || !p.Equal(want) {
			t.Errorf("%s: %v, %v; want %v", text, p.Time, err, want)
		}
	}
	var p cli.PastTime
	if err := p.UnmarshalText([]byte("90m")); err != nil || time.Since(p.Time).Round(time.Minute) != 90*time.Minute {
		t.Errorf("90m: %v, %v", p.Time, err)
	}
	for _, text := range []string{"", "now", "-5m", "31.1.2026", "0001-01-01T00:00:00Z"} {
		if err := p.UnmarshalText([]byte(text)); err == nil {
			t.Errorf("%q is taken as %v", text, p.Time)
		}
	}
}

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
