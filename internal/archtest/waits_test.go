package archtest_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// waiting lists the trees whose durations stand in docs/waits.md.
func waiting() []string {
	return []string{
		"orchestrator", "workqueue", "endpoints", "gather", "internal/access", "internal/alerts", "internal/api",
		"internal/cli",
		"internal/connections", "internal/embedded", "internal/health", "internal/intake", "internal/live",
		"internal/metrics", "internal/producers", "internal/pull", "internal/schedules", "internal/trackers",
		"internal/responder", "internal/webhook", "migrations", "cmd",
	}
}

// notWaiting lists trees below them: kits for tests, which nobody runs in earnest.
func notWaiting() []string { return []string{"endpoints/endpointstest", "internal/api/apitest"} }

// wait is a named duration of the code: a constant, or a list of them in a variable.
type wait struct {
	pkg, name, file string
	value           string // as the page writes it; empty for lists
}

func (w wait) String() string { return w.pkg + "." + w.name }

func TestEveryWaitIsWrittenDown(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	page, err := os.ReadFile(filepath.Join(root, "docs", "waits.md"))
	if err != nil {
		t.Fatal(err)
	}
	var waits []wait
	for pkg, files := range sources(t, root) {
		waits = append(waits, durationsOf(files, pkg)...)
	}
	if len(waits) < 100 {
		t.Fatalf("only %d named durations were found; the scan looks in the wrong place", len(waits))
	}
	for _, problem := range unwritten(string(page), waits) {
		t.Error(problem)
	}
}

func TestAMissingWaitIsFound(t *testing.T) {
	t.Parallel()
	const page = "# Every wait\n\n### a\n\n| `one`, `three` | 1 s, 1 min | x |\n| `list` | … | x |\n" +
		"\n### b\n"
	one := wait{"a", "one", "a/a.go", "1 s"}
	three := wait{"a", "three", "a/a.go", "1 min"}
	list := wait{"a", "list", "a/a.go", ""}
	tests := []struct {
		name  string
		waits []wait
		want  string // part of the problem; empty when there is none
	}{
		{"all", []wait{one, three, list}, ""},
		{"one more", []wait{one, three, list, {"a", "two", "a/b.go", "2 s"}}, "a/b.go: two (2 s) is not in"},
		{"in another package's table", []wait{one, three, list, {"b", "one", "b/b.go", "1 s"}}, "b/b.go: one (1 s)"},
		{"of another length", []wait{{"a", "one", "a/a.go", "7 s"}, three, list}, "one is 7 s, but the page says 1 s"},
		{"gone", []wait{one, list}, "three of a stands in"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := strings.Join(unwritten(page, test.waits), "\n")
			if !strings.Contains(got, test.want) || (test.want == "") != (got == "") {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// unwritten compares durations with the tables of the page, package by package, in both directions.
func unwritten(page string, waits []wait) []string {
	tables := tablesOf(page)
	var problems []string
	for _, w := range waits {
		said, found := tables[w.pkg][w.name]
		delete(tables[w.pkg], w.name)
		switch {
		case !found:
			problems = append(problems, fmt.Sprintf("%s: %s (%s) is not in the table of %s of docs/waits.md: "+
				"say who ends it, and what then", w.file, w.name, w.value, w.pkg))
		case w.value != "" && said != w.value:
			problems = append(problems, fmt.Sprintf("%s: %s is %s, but the page says %s", w.file, w.name, w.value, said))
		}
	}
	for pkg, rows := range tables {
		for name := range rows {
			problems = append(problems, fmt.Sprintf("%s of %s stands in docs/waits.md, but not in the code", name, pkg))
		}
	}
	slices.Sort(problems)
	return problems
}

// tablesOf reads the page: by package (a heading of the third level), then name, the value beside it. A row may
// have several names and as many values, with commas between them.
func tablesOf(page string) map[string]map[string]string {
	name := regexp.MustCompile("`(\\w+)`")
	tables := map[string]map[string]string{}
	for section := range strings.SplitSeq(page, "\n### ") {
		pkg, rows, _ := strings.Cut(section, "\n")
		tables[pkg] = map[string]string{}
		for row := range strings.Lines(rows) {
			cells := strings.Split(row, "|")
			if len(cells) < 4 || !strings.HasPrefix(strings.TrimSpace(cells[1]), "`") {
				continue
			}
			values := strings.Split(cells[2], ",")
			for i, found := range name.FindAllStringSubmatch(cells[1], -1) {
				tables[pkg][found[1]] = strings.TrimSpace(values[min(i, len(values)-1)])
			}
		}
	}
	return tables
}
