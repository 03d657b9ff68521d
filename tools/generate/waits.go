package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
)

// waiting lists the trees whose durations stand in docs/waits.md.
func waiting() []string {
	return []string{
		"orchestrator", "workqueue", "endpoints", "gather", "internal/access", "internal/alerts", "internal/api",
		"internal/cli", "internal/connections", "internal/embedded", "internal/health", "internal/intake",
		"internal/live", "internal/metrics", "internal/producers", "internal/pull", "internal/schedules",
		"internal/startup", "internal/trackers", "internal/responder", "internal/webhook", "migrations", "cmd",
	}
}

// notWaiting lists trees below them: kits for tests, which nobody runs in earnest.
func notWaiting() []string {
	return []string{"endpoints/endpointstest", "internal/api/apitest", "orchestrator/internal/nodetest",
		"workqueue/internal/storetest"}
}

// waits lists all named durations, by package. One that nobody has said a word of is an error.
func waits(root string) (string, error) {
	packages, err := sources(root)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	for _, tree := range waiting() {
		for _, pkg := range slices.Sorted(maps.Keys(packages)) {
			if pkg != tree && !strings.HasPrefix(pkg, tree+"/") {
				continue
			}
			table, err := durationTable(durationsOf(packages[pkg]))
			if err != nil {
				return "", fmt.Errorf("%s: %w", pkg, err)
			}
			if table != "" {
				fmt.Fprintf(&b, "\n### %s\n\n| name | value | what |\n|---|---|---|\n%s", pkg, table)
			}
		}
	}
	b.WriteString("\n")
	return b.String(), nil
}

// durationTable writes a row for each that has words, with those after it that have none.
func durationTable(all []duration) (string, error) {
	var b strings.Builder
	for len(all) > 0 {
		first := all[0]
		if first.words == "" {
			return "", fmt.Errorf("%s has no comment: say above it who waits for what, and what then", first.name)
		}
		names, values := []string{}, []string{}
		for more := true; more; more = len(all) > 0 && all[0].words == "" && all[0].list == first.list {
			names, values = append(names, "`"+all[0].name+"`"), append(values, all[0].value)
			all = all[1:]
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", strings.Join(names, ", "), strings.Join(values, ", "),
			strings.ReplaceAll(first.words, "|", "\\|"))
	}
	return b.String(), nil
}

// sources parses the trees that wait, but not their tests: the files of each package, by their names.
func sources(root string) (map[string][]*ast.File, error) {
	packages, set := map[string][]*ast.File{}, token.NewFileSet()
	for _, tree := range waiting() {
		err := filepath.WalkDir(filepath.Join(root, tree), func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
				return err
			}
			dir, err := filepath.Rel(root, filepath.Dir(name))
			if err != nil {
				return err
			}
			pkg := filepath.ToSlash(dir)
			if slices.Contains(notWaiting(), pkg) {
				return nil
			}
			file, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution|parser.ParseComments)
			packages[pkg] = append(packages[pkg], file)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return packages, nil
}
