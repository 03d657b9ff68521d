package main

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// TestAFlowInTypeScript has one of two instances of a flow die in the middle of a run: the other takes its chunks on.
func TestAFlowInTypeScript(t *testing.T) {
	t.Parallel()
	b := setup(t)
	program := testenv.NodeService(t, filepath.Join("..", "..", "examples", "node"))
	first, _ := b.program("node", program)
	other, said := b.program("node", program)
	t.Cleanup(func() {
		_ = other.Process.Kill()
		_ = other.Wait()
	})
	const count = 2_000
	var rows strings.Builder
	rows.WriteString("id,balance\n")
	for i := range count {
		fmt.Fprintf(&rows, "ACC-%d,%d\n", i, i*2)
	}
	b.want(b.pipe(rows.String(), "run", "start", "--endpoint", "node-statement", "--items", "-", "--chunk", "20",
		"--rate", "500"), cli.ExitOK)
	eventually(t, "some are done", func() bool {
		return strings.Count(b.tranche("run", "export", "last").out, `"closing"`) > 0
	})
	if err := first.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = first.Wait()
	b.want(b.tranche("run", "watch", "last"), cli.ExitOK, "2,000 of 2,000 items done")
	export := b.tranche("run", "export", "last").out
	for decoder, n := json.NewDecoder(strings.NewReader(export)), 0; n < count; n++ {
		var item struct {
			Ordinal int
			Result  *struct{ Closing, Doubled float64 }
		}
		if err := decoder.Decode(&item); err != nil {
			t.Fatalf("item %d: %v", n, err)
		}
		closing, doubled := float64(item.Ordinal*203)/100, float64(item.Ordinal*6)/100
		if r := item.Result; r == nil || math.Abs(r.Closing-closing) > 1e-9 || math.Abs(r.Doubled-doubled) > 1e-9 {
			t.Errorf("item %d: got %+v, want %.2f and %.2f", item.Ordinal, r, closing, doubled)
		}
	}
	b.want(b.tranche("quarantine", "list"), cli.ExitOK, "nothing")
	if t.Failed() {
		t.Log(said.String())
	}
}
