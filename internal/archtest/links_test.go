package archtest_test

import (
	"bytes"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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
	links := 0
	walk(t, func(at string, text []byte) error {
		found, broken := brokenLinks(filepath.Join("..", "..", at), text)
		links += found
		for _, problem := range broken {
			t.Error(problem)
		}
		return nil
	}, ".md")
	if links < 200 {
		t.Errorf("only %d links were found; the scan looks in the wrong place", links)
	}
}

func brokenLinks(page string, text []byte) (links int, broken []string) {
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
	return links, broken
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
	kinds, _, _ = bytes.Cut(kinds, []byte("\n// What items wait for.")) // explain has a sentence for each
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

// statements is how many docs/security.md makes, in the table of what is proved.
const statements = 26

// Every statement in the table of docs/security.md names tests that there are, and that say which statement they prove;
// one without a test says that it is not claimed. No test proves a statement that does not name it.
func TestEveryStatementOnSecurityHasItsTests(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "security.md"))
	if err != nil {
		t.Fatal(err)
	}
	proofs := proofsIn(t)
	named := map[string][]int{}
	seen := 0
	for _, row := range regexp.MustCompile(`(?m)^\| (\d+) \| .* \| (.*) \|$`).FindAllStringSubmatch(string(page), -1) {
		number, err := strconv.Atoi(row[1])
		if seen++; err != nil || number != seen {
			t.Errorf("statement %s is number %d of the table", row[1], seen)
		}
		tests := regexp.MustCompile("`(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(row[2], -1)
		if len(tests) == 0 && !strings.HasPrefix(row[2], "not claimed") {
			t.Errorf("statement %d has no test, and does not say that it is not claimed", number)
		}
		for _, test := range tests {
			named[test[1]] = append(named[test[1]], number)
			if !slices.Contains(proofs[test[1]], number) {
				t.Errorf("statement %d: %s is not there, or does not say PROOF: who may do what, %d", number, test[1], number)
			}
		}
	}
	if seen != statements {
		t.Errorf("the table has %d statements; want %d", seen, statements)
	}
	for test, numbers := range proofs {
		for _, number := range numbers {
			if !slices.Contains(named[test], number) {
				t.Errorf("%s proves statement %d, which does not name it in docs/security.md", test, number)
			}
		}
	}
}

// proofsIn returns what the tests of the module say that they prove.
func proofsIn(t *testing.T) map[string][]int {
	t.Helper()
	cites := regexp.MustCompile(`^// PROOF: who may do what, ([0-9, and]+)\.`)
	test := regexp.MustCompile(`^func (Test\w+)\(`)
	found := map[string][]int{}
	walk(t, func(_ string, text []byte) error {
		var numbers []int
		for line := range strings.Lines(string(text)) {
			if m := cites.FindStringSubmatch(line); m != nil {
				for _, n := range regexp.MustCompile(`\d+`).FindAllString(m[1], -1) {
					number, _ := strconv.Atoi(n) // it is digits
					numbers = append(numbers, number)
				}
			}
			if m := test.FindStringSubmatch(line); m != nil {
				found[m[1]] = append(found[m[1]], numbers...)
				numbers = nil
			}
		}
		return nil
	}, ".go")
	return found
}
