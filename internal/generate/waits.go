package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// waitsPage says what waits, in a table that is written by hand, and ends with the values of the times that this names.
const waitsPage = "docs/waits.md"

// waiting lists the trees whose durations have to have a comment, and may be named there.
func waiting() []string {
	return []string{
		"bitfield", "orchestrator", "workqueue", "endpoints", "gather", "internal/access", "internal/alerts", "internal/api",
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

// codeName matches names of the code, among what a page writes as code.
var codeName = regexp.MustCompile("`([A-Za-z]+[a-z][A-Z][A-Za-z]*)`")

// waits lists the named durations that the page mentions before the list. A duration that nobody has said a word of is
// an error, and so is a name on the page that the code does not have.
func waits(root string) (string, error) {
	packages, err := sources(root)
	if err != nil {
		return "", err
	}
	page, err := os.ReadFile(filepath.Join(root, waitsPage))
	if err != nil {
		return "", err
	}
	mentioned, _, _ := bytes.Cut(page, []byte("<!--"))
	missing := map[string]bool{}
	for _, name := range codeName.FindAllSubmatch(mentioned, -1) {
		missing[string(name[1])] = !strings.HasSuffix(string(name[1]), "Error") // a type, and no time
	}
	rows, err := durationRows(packages, missing)
	for name, unknown := range missing {
		if unknown && err == nil {
			err = fmt.Errorf("%s names %s, which is no duration of the code", waitsPage, name)
		}
	}
	slices.Sort(rows)
	return "\n| name | value | package |\n|---|---|---|\n" + strings.Join(rows, "") + "\n", err
}

// durationRows makes a row of each duration whose name is in missing, and says there that it was found.
func durationRows(packages map[string][]*ast.File, missing map[string]bool) (rows []string, err error) {
	for pkg, files := range packages {
		all := durationsOf(files)
		if err := described(all); err != nil {
			return nil, fmt.Errorf("%s: %w", pkg, err)
		}
		for _, d := range all {
			if _, wanted := missing[d.name]; wanted {
				rows = append(rows, fmt.Sprintf("| %#q | %s | %#q |\n", d.name, d.value, pkg))
				missing[d.name] = false
			}
		}
	}
	return rows, nil
}

// described is an error when one of them has no words: neither its own, nor those of the one above it in its list.
func described(all []duration) error {
	for i, d := range all {
		if d.words == "" && (i == 0 || all[i-1].list != d.list) {
			return fmt.Errorf("%s has no comment: say above it who waits for what, and what then", d.name)
		}
	}
	return nil
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
