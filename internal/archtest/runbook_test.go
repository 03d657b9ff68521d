package archtest_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Every condition of health stands in the runbook. That each alert does, and leads there, is tested beside the metrics.
func TestEveryConditionIsInTheRunbook(t *testing.T) {
	t.Parallel()
	kinds, err := os.ReadFile(filepath.Join("..", "..", "workqueue", "health", "rules.go"))
	if err != nil {
		t.Fatal(err)
	}
	runbook, err := os.ReadFile(filepath.Join("..", "..", "docs", "operate", "runbook.md"))
	if err != nil {
		t.Fatal(err)
	}
	kinds, _, _ = bytes.Cut(kinds, []byte("\n// What items wait for.")) // operations.md has those
	_, conditions, _ := strings.Cut(string(runbook), "\n## Conditions\n")
	found := regexp.MustCompile(`(?m)^\t\w+ +Kind = "(\w+)"`).FindAllSubmatch(kinds, -1)
	if len(found) < 30 {
		t.Errorf("only %d kinds were found; the scan looks in the wrong place", len(found))
	}
	for _, kind := range found {
		if !strings.Contains(conditions, "`"+string(kind[1])+"`") {
			t.Errorf("%s is not in docs/operate/runbook.md", kind[1])
		}
	}
}
