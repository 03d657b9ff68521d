package runs

import (
	"bytes"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

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
	p.End()
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
