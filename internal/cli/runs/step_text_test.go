package runs

import (
	"bytes"
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
	if text := runHead(run) + conclusion(run); strings.Contains(text, "(generation") {
		t.Errorf("a run that was not run again:\n%s", text)
	}
	run.Generation = 2
	if text := runHead(run) + conclusion(run); strings.Count(text, "9.1s (generation 2)") != 2 {
		t.Errorf("after a re-run:\n%s", text)
	}
}

func severalSteps() (run client.RunDocument) {
	run.State, run.Items, run.Progress = "running", 1000, 0.5
	run.Steps = []client.StepView{{Name: "accounts", Progress: 1}, {Name: "statement", Progress: 0.25}}
	run.Steps[1].Done, run.Steps[1].Failed, run.Steps[1].Skipped = 240, 7, 3
	return run
}

func TestEachStepHasABar(t *testing.T) {
	t.Parallel()
	lines := liveLines(severalSteps(), 80)
	if len(lines) != 3 || !strings.Contains(lines[1], strings.Repeat("█", barRoom)+"   100%") ||
		!strings.Contains(lines[2], "█░") || !strings.HasSuffix(lines[2], " 25%  240  7 failed  3 left out") {
		t.Errorf("got\n%s", strings.Join(lines, "\n"))
	}
	for _, line := range lines {
		if n := len([]rune(line)); n >= 80 {
			t.Errorf("%d characters on 80 columns: %s", n, line)
		}
	}
	if lines := liveLines(severalSteps(), 60); len(lines) != 1 || len([]rune(lines[0])) >= 60 {
		t.Errorf("on a narrow terminal: %q", lines)
	}
}

func TestBarsAreDrawnOverThoseBefore(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := &progress{term: &cli.Console{Err: &out}, live: true}
	p.draw([]string{"one", "two", "three"})
	p.draw([]string{"ONE", "TWO", "THREE"})
	p.end()
	if got, want := out.String(), "\r\x1b[Kone\n\x1b[Ktwo\n\x1b[Kthree"+
		"\x1b[2A\r\x1b[KONE\n\x1b[KTWO\n\x1b[KTHREE\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestBarFitsTheTerminal(t *testing.T) {
	t.Parallel()
	var run client.RunDocument
	run.State, run.Items, run.Done, run.Failed, run.Rate = "running", 1_000_000, 999_998, 1, 123_456
	eta := 3725.0
	run.ETASeconds = &eta
	for _, columns := range []int{20, 60, 80, 100, 200} {
		line := barLine(run, columns)
		if n := len([]rune(line)); n >= columns {
			t.Errorf("%d characters on %d columns: %s", n, columns, line)
		}
		if columns >= 100 && !strings.Contains(line, " 99.99%") {
			t.Errorf("before the end it is not 99.99%%: %s", line)
		}
	}
}
