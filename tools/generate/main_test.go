package main

import (
	"bytes"
	"encoding/json"
	"go/ast"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator/client"
)

const root = "../.."

func read(t *testing.T, name string) []byte {
	t.Helper()
	return testenv.Must(os.ReadFile(filepath.Join(root, name)))(t)
}

// What is kept is what the API makes of it now.
func TestNothingIsStale(t *testing.T) {
	t.Parallel()
	text := testenv.Must(document())(t)
	if !bytes.Equal(text, read(t, documentFile)) {
		t.Errorf("%s %v", documentFile, errStale)
	}
	for _, piece := range pages() {
		page := read(t, piece.page)
		if fresh, err := piece.in(page, root); err != nil || !bytes.Equal(fresh, page) {
			t.Errorf("%s %v, %v", piece.page, errStale, err)
		}
	}
	testenv.NoError(t, fresh(filepath.Join(root, clientFile), root))
}

// A file that was changed by hand, or is of another document, is found.
func TestAStaleFileIsFound(t *testing.T) {
	t.Parallel()
	good := read(t, clientFile)
	for name, change := range map[string]func(string) string{
		"by hand":   func(s string) string { return strings.Replace(s, "type RunList struct", "type RunLists struct", 1) },
		"no stamp":  func(s string) string { return s[:strings.LastIndex(s, "\n// Of ")] },
		"of others": func(s string) string { return s[:len(s)-100] + string(s[len(s)-100]^1) + s[len(s)-99:] },
	} {
		file := filepath.Join(t.TempDir(), "client.gen.go")
		testenv.NoError(t, os.WriteFile(file, []byte(change(string(good))), 0o600))
		testenv.Says(t, fresh(file, root), "make generate", "%s", name)
	}
}

// The page has every operation of the document, regardless of its method.
func TestThePageHasEveryOperation(t *testing.T) {
	t.Parallel()
	var document struct {
		Paths map[string]map[string]json.RawMessage `json:"paths"`
	}
	testenv.NoError(t, json.Unmarshal(read(t, documentFile), &document))
	page, count := string(read(t, pages()[0].page)), 0
	for path, methods := range document.Paths {
		for method := range methods {
			count++
			testenv.Has(t, page, "| `"+strings.ToUpper(method)+" "+path+"` |", "%s", pages()[0].page)
		}
	}
	if all := operations(); len(all) != count || count < 50 {
		t.Errorf("there are %d operations, and %d in %s", len(all), count, documentFile)
	}
}

// Every operation has a method, and the client goes where the server listens.
func TestEveryOperationHasAMethod(t *testing.T) {
	t.Parallel()
	methods := reflect.TypeFor[*client.Client]()
	all := operations()
	if len(all) < 50 {
		t.Errorf("there are only %d operations", len(all))
	}
	for _, op := range all {
		if _, ok := methods.MethodByName(camel(op.OperationID)); !ok {
			t.Errorf("%s has no method; run: make generate", op.OperationID)
		}
	}
	testenv.Same(t, client.DefaultURL, "http://"+api.DefaultListen, "the client goes to, and the server listens on %s",
		api.DefaultListen)
	if "/api/"+client.APIVersion != api.Prefix || client.APIVersion != api.APIVersion {
		t.Errorf("the client speaks %s, and the server %s", client.APIVersion, api.Prefix)
	}
}

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
