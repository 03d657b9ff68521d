package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// There is a page of each command that is no secret, and it has what --help has.
func TestManPages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if r := runProgram(t, nil, "", "man", dir); r.code != 0 {
		t.Fatalf("man: exit code %d: %s", r.code, r.err)
	}
	for page, want := range map[string]string{
		"tranche.1": `tranche\-run`, "tranche-run.1": `\-\-endpoint`, "tranche-serve.1": "TRANCHE_DATABASE",
	} {
		text, err := os.ReadFile(filepath.Join(dir, page))
		if err != nil || !strings.Contains(string(text), want) || !strings.HasPrefix(string(text), ".TH TRANCHE") {
			t.Errorf("%s: %v, without %s:\n%.1000s", page, err, want, text)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "tranche-man.1")); err == nil {
		t.Error("a hidden command has a page")
	}
}
