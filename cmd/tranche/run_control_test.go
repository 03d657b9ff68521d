package main

import (
	"os"
	"path/filepath"
	"testing"
)

func TestControlOfRuns(t *testing.T) {
	t.Parallel()
	b := setup(t)
	start := func(args ...string) {
		t.Helper()
		b.want(b.pipe(people, append([]string{"run", "start", "--endpoint", "echo", "--items", "-"}, args...)...), 0,
			"started")
	}
	start("--name", "it") // nobody listens yet
	b.want(b.tranche("run", "pause", "it", "--reason", "the service is sick"), 0, "paused: nothing more is sent",
		"go on with: tranche run resume")
	b.want(b.tranche("run", "pause", "it"), 1, "paused already", "the service is sick")
	b.want(b.tranche("run", "set", "it", "--chunk", "1", "--threshold", "2"), 0, "→ 1", "stays paused", "max failed")
	b.want(b.tranche("run", "set", "it", "--chunk", "1"), 0, "nothing was changed")
	b.want(b.tranche("run", "approve", "it"), 1, "not waiting for approval")
	b.want(b.tranche("run", "pause", "--all"), 0, "no run was paused")
	b.want(b.tranche("run", "resume", "it", "--max-failed", "none"), 0, "resumed: its items")
	start("--name", "other")
	b.want(b.tranche("run", "pause", "--all"), 0, "2 runs paused", "started from now on are not paused", "resume --all")
	b.want(b.tranche("run", "resume", "--all"), 0, "2 runs resumed: their items")
	b.want(b.tranche("run", "cancel", "other", "--reason", "twice"), 0, "3 items left")

	mended := make(chan struct{})
	b.echo(mended)
	b.want(b.tranche("run", "watch", "it"), 3, "1 failed")
	b.want(b.tranche("run", "rerun", "it", "--failed", "--dry-run"), 0, "dry run",
		"1 item again", "1 request over 1 block",
		"nothing was changed")
	b.want(b.tranche("run", "list", "--result", "failed"), 0, " it ")
	b.want(b.tranche("run", "list", "--result", "ok"), 0, "no run fits")
	b.accepting()
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte("1\r\n\n2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	close(mended)
	b.want(b.tranche("run", "rerun", "it", "--keys", file, "--wait"), 0, "2 items again, as generation 2",
		"3 of 3 items done")
	b.want(b.pipe("1\nnobody\n", "run", "rerun", "it", "--keys", "-"), 1, `"nobody"`)
	b.correcting()
	b.want(b.tranche("run", "rerun", "it", "--key", "1", "--key", "2", "--canary", "1"), 0,
		"1 of them run first; 1 are held",
		"tranche run approve")
	b.want(b.tranche("run", "set", "--help"), 0, "N|auto", "--threshold")
	b.want(b.tranche("run", "cancel", "--all"), 0, "1 run cancelled")
	b.want(b.tranche("run", "cancel", "--all"), 0, "none is under way")
	for _, args := range [][]string{
		{"pause"}, {"pause", "it", "--all"}, {"resume", "--all", "--max-failed", "1"}, {"set", "it"},
		{"resume", "it", "--max-failed", "x"}, {"set", "it", "--chunk", "0"}, {"set", "it", "--rate", "fast"},
		{"rerun", "it", "--failed", "--canary-auto"}, {"rerun", "it", "--failed", "--dry-run", "--wait"},
		{"rerun", "it", "--keys", "no-such-file"}, {"accept", "it", "--failed"}, {"accept", "it", "--reason", "r"},
	} {
		b.want(b.tranche(append([]string{"run"}, args...)...), 2)
	}
}
