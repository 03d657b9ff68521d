package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestPageIsFilledBetweenItsMarks(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(path, []byte("before\n"+pageBegin+"old\n"+pageEnd+"after\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	p, err := openPage(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.fill(&report{Rounds: 1, Results: []result{resultOf("floor", 1_000)}}); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got := string(raw)
	if !strings.HasPrefix(got, "before\n"+pageBegin) || !strings.HasSuffix(got, pageEnd+"after\n") ||
		strings.Contains(got, "old") || !strings.Contains(got, "| floor | 1,000 |") {
		t.Errorf("the page is now\n%s", got)
	}
}

func TestPageWithoutMarksIsRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", pageBegin, pageEnd, pageEnd + pageBegin} {
		if _, _, err := cutPage(text); err == nil {
			t.Errorf("took %q", text)
		}
	}
}
