package runs

import (
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

func TestStepsReadWell(t *testing.T) {
	t.Parallel()
	run := &client.RunDocument{}
	run.Items = 1000
	run.Progress, run.State = 0.5, "running"
	run.Steps = []client.StepView{
		{Name: "accounts", Kind: client.KindRequest, Endpoint: "accounts", SeesItem: true, Items: 1000, Done: 990,
			Failed: 10, Progress: 1},
		{Name: "branches\x1b[31m", Kind: client.KindHTTP, Endpoint: "http:branches:8081", SeesItem: true, Optional: true},
		{Name: "statement", Kind: client.KindLocal, Endpoint: "local:pdf", Needs: []string{"accounts", "branches"},
			Inputs: []string{"accounts"}, Items: 1000, Waiting: 990, Skipped: 10, Barrier: true, Progress: 0.01},
	}
	text := runSteps(run)
	for _, want := range []string{
		"LEFT OUT", "endpoint accounts, by plain requests", "HTTP service branches:8081; optional",
		"needs accounts, branches",
		"sees accounts; waits at its barrier", "local function pdf", `branches\x1b[31m`, "100%",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if line := plainLine(*run); !strings.Contains(line, "50%") || !strings.Contains(line, "accounts 100%") {
		t.Errorf("a line of progress: %s", line)
	}
}

func TestAnItemOfSeveralStepsReadsWell(t *testing.T) {
	t.Parallel()
	at := time.Now()
	text := cli.ItemText(&client.ItemView{Key: "C7", State: client.OutcomeFailed, Payload: []byte(`{}`),
		Steps: []client.ItemStep{
			{Name: "accounts", Endpoint: "accounts", State: "failed", Generation: 2, RecordedAt: &at, Service: "bank",
				Error:   &client.ItemError{Code: "NO_SUCH", Message: "none"},
				Earlier: []client.EarlierPart{{Generation: 1, Size: 1200, SHA256: strings.Repeat("ab", 32)}}},
			{Name: "logo", Endpoint: "http:h", State: "done", Generation: 1, Size: 12, SHA256: strings.Repeat("cd", 32),
				ContentType: "image/png", ResultBytes: []byte("123456789012"), Stale: true},
			{Name: "statement", Endpoint: "local:pdf", State: "skipped", LeftOutBy: []string{"accounts"}},
			{Name: "index", Endpoint: "sql:ledger", State: "waiting", WaitsFor: []string{"statement", "logo"}},
		}}, 0)
	for _, want := range []string{
		"generation 1, 1,200 bytes, sha256 abababababababab\n", "left out: step accounts failed", "by bank",
		"12 bytes of image/png", "being made again", "waiting for steps statement, logo", "source ledger", "NO_SUCH: none",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// The dashboard has the same table.
func TestAShareIsTheSamePercentageEverywhere(t *testing.T) {
	t.Parallel()
	for share, want := range map[float64]string{
		0: "0%", 1e-7: "0.01%", 3.0 / 20_000: "0.02%", 0.0049: "0.49%", 0.0146: "1.5%", 0.07: "7%", 0.125: "13%",
		0.29: "29%", 0.5: "50%", 0.946: "94.6%", 0.9949: "99.49%", 0.9999999: "99.99%", 1: "100%",
	} {
		if got := percent(share); got != want {
			t.Errorf("%v is %s; want %s", share, got, want)
		}
	}
}

func TestTheTimeOfAReRunIsThatOfItsGeneration(t *testing.T) {
	t.Parallel()
	run := &client.RunDocument{}
	run.Generation, run.Seconds = 1, 9.1
	if text := runHead(run) + conclusion(*run); strings.Contains(text, "(generation") {
		t.Errorf("a run that was not run again:\n%s", text)
	}
	run.Generation = 2
	if text := runHead(run) + conclusion(*run); strings.Count(text, "9.1s (generation 2)\n") != 2 {
		t.Errorf("after a re-run:\n%s", text)
	}
}
