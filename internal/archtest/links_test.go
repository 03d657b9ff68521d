package archtest_test

import (
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	pageLink    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	pageHeading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	notInAnchor = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	pageCode    = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
)

// Links of pages lead to files and headings that are there.
func TestLinksOfPagesLeadSomewhere(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	links := 0
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && (entry.Name() == "node_modules" || outside(path)):
			return fs.SkipDir
		case entry.IsDir() || filepath.Ext(path) != ".md":
			return nil
		}
		found, broken, err := brokenLinks(path)
		links += found
		for _, problem := range broken {
			t.Error(problem)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if links < 200 {
		t.Errorf("only %d links were found; the scan looks in the wrong place", links)
	}
}

func TestABrokenLinkIsFound(t *testing.T) {
	t.Parallel()
	page := filepath.Join(t.TempDir(), "page.md")
	text := "# A page, `x`\n\n[a](#a-page-x) [b](#b) [c](gone.md) [d](page.md#a-page-x) [e](page.md#e) `[f](f.md)`\n"
	if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	links, broken, err := brokenLinks(page)
	if err != nil || links != 5 || len(broken) != 3 {
		t.Errorf("%d links, %q, %v; want 5 with 3 broken", links, broken, err)
	}
}

func brokenLinks(page string) (links int, broken []string, err error) {
	text, err := os.ReadFile(page)
	if err != nil {
		return 0, nil, err
	}
	for _, found := range pageLink.FindAllStringSubmatch(pageCode.ReplaceAllString(string(text), ""), -1) {
		target, err := url.Parse(found[1])
		if err != nil || target.Scheme != "" {
			continue
		}
		links++
		file := page
		if target.Path != "" {
			file = filepath.Join(filepath.Dir(page), filepath.FromSlash(target.Path))
		}
		if _, err := os.Stat(file); err != nil {
			broken = append(broken, fmt.Sprintf("%s: %s leads to no file", page, found[1]))
			continue
		}
		if target.Fragment == "" || filepath.Ext(file) != ".md" {
			continue
		}
		if there, err := anchors(file); err != nil || !there[target.Fragment] {
			broken = append(broken, fmt.Sprintf("%s: %s leads to no heading (%v)", page, found[1], err))
		}
	}
	return links, broken, nil
}

// anchors are those that GitHub gives the headings of a page.
func anchors(page string) (map[string]bool, error) {
	text, err := os.ReadFile(page)
	if err != nil {
		return nil, err
	}
	all := map[string]bool{}
	for _, heading := range pageHeading.FindAllStringSubmatch(string(text), -1) {
		plain := notInAnchor.ReplaceAllString(strings.ToLower(heading[1]), "")
		all[strings.ReplaceAll(plain, " ", "-")] = true
	}
	return all, nil
}
