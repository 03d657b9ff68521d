package runs

import (
	"bytes"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

// The last state of the bar stays, on a line of its own.
func TestTheBarStays(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	p := &progress{term: &cli.Console{Err: &out}, live: true}
	p.end()
	if out.Len() > 0 {
		t.Errorf("a bar that was never shown became %q", out.String())
	}
	var run client.RunDocument
	run.State, run.Items, run.Done = "completed", 3, 3
	p.show(run)
	p.end()
	last := out.String()[strings.LastIndex(out.String(), "\r"):]
	if !strings.Contains(last, "100%") || !strings.HasSuffix(last, "completed\n") {
		t.Errorf("at the end there is %q", last)
	}
}
