package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/orchestrator/client"
	"github.com/tranchehq/tranche/workqueue"
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
	b.want(b.tranche("run", "cancel", "other", "--reason", "twice"), 0, "3 items stay")

	mended := make(chan struct{})
	b.echo(mended)
	b.want(b.tranche("run", "watch", "it"), 3, "1 failed")
	b.want(b.tranche("run", "rerun", "it", "--failed", "--dry-run"), 0, "dry run",
		"1 items again", "1 requests over 1 blocks",
		"nothing was changed")
	b.accepting()
	file := filepath.Join(t.TempDir(), "keys")
	if err := os.WriteFile(file, []byte("1\r\n\n2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	close(mended)
	b.want(b.tranche("run", "rerun", "it", "--keys", file, "--wait"), 0, "2 items again, as generation 2",
		"3 of 3 items done")
	b.want(b.pipe("1\nnobody\n", "run", "rerun", "it", "--keys", "-"), 1, `"nobody"`)
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

func TestRerunSaysWhoLetsTheOthersGo(t *testing.T) {
	t.Parallel()
	again := &client.Rerun{Run: workqueue.NewRunID().String(), Items: 10, Held: 8, Generation: 2}
	if text := rerunText(again, false); !strings.Contains(text, "When the first have ended: tranche run approve") {
		t.Errorf("with a canary that waits: %s", text)
	}
	text := rerunText(again, true)
	if !strings.Contains(text, "They follow by themselves, unless more of the first fail") {
		t.Errorf("with one that goes on by itself: %s", text)
	}
}

func TestReadKeys(t *testing.T) {
	t.Parallel()
	var many strings.Builder
	for i := range 250_000 {
		fmt.Fprintln(&many, i)
	}
	parts, err := readKeys("-", strings.NewReader(many.String()))
	if err != nil || len(parts) != 3 || len(parts[0]) != maxKeysOfRequest || len(parts[2]) != 50_000 ||
		parts[2][49_999] != "249999" {
		t.Errorf("%d parts, %v", len(parts), err)
	}
	parts, err = readKeys("-", strings.NewReader("\ufeffa\r\n\r\n b \nc"))
	if err != nil || len(parts) != 1 || strings.Join(parts[0], "|") != "a| b |c" {
		t.Errorf("%q, %v", parts, err)
	}
	wide := strings.Repeat(strings.Repeat("x", 1000)+"\n", 10_000)
	if parts, err = readKeys("-", strings.NewReader(wide)); err != nil || len(parts) != 2 {
		t.Errorf("%d parts of long keys, %v", len(parts), err)
	}
	for text, want := range map[string]string{
		"": "no key", "\n\r\n": "no key", strings.Repeat("x", 1<<17): "line 1 is longer", "a\n\xff\n": "line 2 is not UTF-8",
	} {
		if _, err := readKeys("-", strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.10q: %v; want %q", text, err, want)
		}
	}
}
