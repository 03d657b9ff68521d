package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/orchestrator/client"
)

// A file of ids and ranges is told apart line by line; what is neither goes to the server, which says what is wrong.
func TestFillAck(t *testing.T) {
	t.Parallel()
	const batch = "0198c5f2-7a3e-7c11-9d0e-3b1f6a2c4d58"
	lines := linesOf(strings.NewReader(strings.Join([]string{
		batch + ":0:1", "", "  " + batch + ":0:2-3 ", batch + ":4", batch + ":4-7", batch + ":all", "0:17", batch + ":0:01",
		"garbage",
	}, "\r\n")))
	var set client.Acknowledgement
	more, err := fillAck(lines, &set)
	if more || err != nil {
		t.Error(more, err)
	}
	if want := []string{batch + ":0:1", batch + ":0:01"}; !slices.Equal(set.IDs, want) {
		t.Errorf("ids %q; want %q", set.IDs, want)
	}
	want := []string{batch + ":0:2-3", batch + ":4", batch + ":4-7", batch + ":all", "0:17", "garbage"}
	if !slices.Equal(set.Ranges, want) {
		t.Errorf("ranges %q; want %q", set.Ranges, want)
	}
	long := linesOf(strings.NewReader(strings.Repeat("x", 2*maxAckLine)))
	if _, err := fillAck(long, &set); err == nil {
		t.Error("a line without an end is read")
	}
}

// What others have written does not move the cursor.
func TestBatchText(t *testing.T) {
	t.Parallel()
	at := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	b := &client.BatchView{
		ID: "0198c5f2", Owner: "bil\x1b[2Jling", Key: "nov\n", State: "completed", Items: 20000, Groups: 3, Done: 19990,
		Failed: 10, Codes: map[string]int64{"A": 2, "B\a": 8}, CreatedBy: "ann", CompletedAt: &at, Keep: "168h0m0s",
		Webhook: &client.WebhookView{URL: "https://api.bank.example/", Secret: "hooks", State: "given_up", Attempts: 9,
			Error: "it answers 500\r"},
		Missing: []string{"0:1-4"},
	}
	text := batchText(b) + missingText(b)
	for _, want := range []string{
		`bil\x1b[2Jling`, `nov\x0a`, "20,000 in 3 groups", `10 (B\x07 8, A 2)`, "is kept for 168h0m0s",
		`signed with hooks: given up; it answers 500\x0d`, "0198c5f2:0:1-4\n", "completed since",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %s in\n%s", want, text)
		}
	}
}
