package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/cli"
	"github.com/tranchehq/tranche/orchestrator/client"
)

// A job of a scheduler whose data is wrong ends, says why, and how to go on; so does one that takes too long.
func TestAWaitEndsWhenNobodyComes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.echo(nil)
	var rows strings.Builder
	rows.WriteString("id,name\n")
	for i := range 2000 {
		fmt.Fprintf(&rows, "%d,bad\n", i)
	}
	b.want(b.pipe(rows.String(), "run", "start", "--endpoint", "echo", "--items", "-", "--name", "wrong", "--chunk", "100",
		"--in-flight", "2", "--wait"), cli.ExitHeld, "outcomes of step echo failed with NO_SUCH",
		"let it go on with: tranche run resume", "go on with: tranche run watch")
	b.want(b.tranche("run", "show", "wrong"), 0, "paused (guard) by tranche")
	b.want(b.tranche("run", "explain", "wrong"), 0, "its first outcomes plainly failed")
	b.wantSoon([]string{"health"}, "run_guard", "its first outcomes plainly failed")
	b.want(b.tranche("run", "watch", "wrong", "--on-hold", "wait", "--max-wait", "1s"), cli.ExitMaxWait,
		"has not ended within --max-wait 1s")
	b.want(b.tranche("run", "resume", "--all"), 0, "no run was resumed", "paused by its guard")
	b.want(b.tranche("run", "resume", "wrong"), 0, "resumed")
	b.want(b.tranche("run", "watch", "wrong"), cli.ExitFailed, "2,000 failed")
	b.want(b.pipe(rows.String(), "run", "start", "--endpoint", "echo", "--items", "-", "--guard", "off", "--wait"),
		cli.ExitFailed, "2,000 failed")
	b.want(b.pipe(rows.String(), "run", "start", "--endpoint", "echo", "--items", "-", "--guard", "9/3"), cli.ExitUsage,
		"--guard: want failures of so many first outcomes")
	b.want(b.tranche("run", "watch", "wrong", "--max-wait", "-1s"), cli.ExitUsage, "--max-wait")
	b.want(b.tranche("run", "start", "--endpoint", "echo", "--items", "x", "--on-hold", "wait"), cli.ExitUsage,
		"--wait too")
	b.want(b.tranche("doctor"), 0, "hold")
}

// Compose all, look, then send.
func TestAGateOnTheCommandLine(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.echo(nil)
	plan := filepath.Join(t.TempDir(), "letters.yaml")
	text := "steps:\n  - {name: compose, endpoint: echo}\n" +
		"  - {name: send, endpoint: echo, needs: [compose], inputs: [item], barrier: approve, approve_by: other}\n"
	if err := os.WriteFile(plan, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	const rows = "id,name\n1,ann\n2,bad\n3,bob\n"
	for _, name := range []string{"2025", "2026"} {
		b.want(b.pipe(rows, "run", "start", plan, "--items", "-", "--name", name, "--wait"), cli.ExitHeld,
			"step send waits for somebody, other than "+cli.OSUser()+", to approve it")
		look := b.tranche("run", "approve", name, "--step", "send", "--dry-run")
		b.want(look, 0, "2 go on, 1 are left out", "compose: 2 done, 1 failed", "anybody but "+cli.OSUser(),
			"sample  1  compose: JSON")
		if name == "2026" {
			b.want(look, 0, "against run", "unchanged      2", "still failing  1")
		}
		b.want(b.tranche("run", "explain", name), 0, "waits for somebody to approve it", "but not "+cli.OSUser())
		b.want(b.tranche("run", "item", name, "1"), 0, "until somebody approves the step")
		b.want(b.tranche("run", "approve", name, "--step", "send"), cli.ExitOther, "approved by somebody else")
		b.want(b.tranche("run", "approve", name), cli.ExitOther, "--step send")
		cl, err := client.New(b.url, client.WithActor("another"))
		if err != nil {
			t.Fatal(err)
		}
		done, err := cl.ApproveRun(t.Context(), name, client.ApproveSettings{Step: "send"})
		if err != nil || done.Items != 2 {
			t.Errorf("approved: %+v, %v", done, err)
		}
		b.want(b.tranche("run", "watch", name), cli.ExitFailed, "2 of 3 items done")
	}
	b.want(b.tranche("run", "approve", "2026", "--step", "send", "--all"), cli.ExitUsage, "")
	b.want(b.tranche("doctor"), 0, "hold")
}
