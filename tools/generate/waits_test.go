package main

import (
	"go/ast"
	"slices"
	"strings"
	"testing"
)

// A default without a name would stand in no table.
func TestDefaultsOfTimeHaveNames(t *testing.T) {
	t.Parallel()
	packages, set, err := sources(root)
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for pkg, files := range packages {
		named += len(durationsOf(files, set))
		for _, file := range files {
			for _, found := range namelessDefaults(file) {
				t.Errorf("%s of %s has a default like 5 * time.Second without a name; make it a constant", found, pkg)
			}
		}
	}
	if named < 100 {
		t.Errorf("only %d named durations were found; the scan looks in the wrong place", named)
	}
}

// namelessDefaults lists the functions that fill in a Config and have a length of time in them.
func namelessDefaults(file *ast.File) (found []string) {
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || !strings.EqualFold(f.Name.Name, "withDefaults") {
			continue
		}
		ast.Inspect(f.Body, func(n ast.Node) bool {
			unit, ok := n.(*ast.SelectorExpr)
			if ok && slices.Contains([]string{"Millisecond", "Second", "Minute", "Hour"}, unit.Sel.Name) {
				found = append(found, f.Name.Name)
			}
			return true
		})
	}
	return found
}
