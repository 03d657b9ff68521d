package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// A default without a name would stand in no table.
func TestDefaultsOfTimeHaveNames(t *testing.T) {
	t.Parallel()
	packages, err := sources(root)
	if err != nil {
		t.Fatal(err)
	}
	named := 0
	for pkg, files := range packages {
		named += len(durationsOf(files))
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
		if f.Body != nil && (declarations{}).mentionsTime(f.Body) {
			found = append(found, f.Name.Name)
		}
	}
	return found
}

func TestDurationsAreRead(t *testing.T) {
	t.Parallel()
	const source = `package a
		// What these are for.
		const (
			one       = 3 * time.Second
			half      = one / 2
			count     = 5
			// other is how long
			// the others | wait.
			other     = b.Wait + time.Millisecond
		)
		const day time.Duration = 24 * time.Hour // of a day
		// several are some.
		var several = [...]time.Duration{time.Second, 3 * time.Second}
		var limit = 7`
	missing := map[string]bool{"half": true, "other": true, "several": true, "AckWait": true}
	rows, err := durationRows(map[string][]*ast.File{"a": {parsed(t, source)}}, missing)
	want := []string{"| `half` | 1.5 s | `a` |\n", "| `other` |  | `a` |\n", "| `several` |  | `a` |\n"}
	if err != nil || !slices.Equal(rows, want) || !missing["AckWait"] || missing["half"] {
		t.Errorf("got %s%v, missing %v; want %s", rows, err, missing, want)
	}
	for _, wordless := range []string{"const one = 3 * time.Second", "const (\n\t// zero is.\n\tzero = time.Hour\n)\n" +
		"const one = 3 * time.Second"} {
		err = described(durationsOf([]*ast.File{parsed(t, "package a\n"+wordless)}))
		if err == nil || !strings.HasPrefix(err.Error(), "one has no comment") {
			t.Errorf("got %v of a wait without words", err)
		}
	}
}

func parsed(t *testing.T, source string) *ast.File {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "a.go", source, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return file
}
