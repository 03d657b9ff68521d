package archtest_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// size is how large a package is, without its tests.
type size struct {
	files, lines int
	names        int            // exported at the top level
	methods      map[string]int // of each type
}

// Limits of a room of the store. A room that outgrows them has become two things.
const (
	roomFiles   = 28
	roomLines   = 3750
	roomNames   = 90
	typeMethods = 60
)

// Limits of a room of the API.
const (
	apiFiles   = 25
	apiLines   = 3500
	apiMethods = 45
)

// Limits of the node and its rooms.
const (
	nodeFiles   = 25
	nodeMethods = 45
)

// largeTypes are those that are larger, with how many methods they may have. They may only shrink: what is new has a
// type of its own, by what it is about.
func largeTypes() map[string]int {
	return map[string]int{"internal/api/apitest.Bench": 64}
}

func TestRoomsStaySmall(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	rooms, api, node := 0, 0, 0
	for pkg, s := range sizes(t, root) {
		switch {
		case strings.HasPrefix(pkg, "workqueue"):
			rooms++
		case strings.HasPrefix(pkg, "internal/api"):
			api++
		case strings.HasPrefix(pkg, "orchestrator"):
			node++
		}
		for _, problem := range tooLarge(pkg, s) {
			t.Error(problem)
		}
	}
	if rooms < 20 || api < 10 || node < 15 {
		t.Errorf("only %d, %d and %d rooms were found; the scan looks in the wrong place", rooms, api, node)
	}
}

func TestALargeRoomIsFound(t *testing.T) {
	t.Parallel()
	for name, s := range map[string]size{
		"29 files": {files: 29}, "3751 lines": {lines: 3751}, "91 exported names": {names: 91},
		"61 methods": {methods: map[string]int{"Store": 61}},
	} {
		if got := strings.Join(tooLarge("workqueue/redo", s), "\n"); !strings.Contains(got, name) {
			t.Errorf("%s: got %q", name, got)
		}
	}
	for name, s := range map[string]size{
		"26 files": {files: 26}, "3501 lines": {lines: 3501}, "46 methods": {methods: map[string]int{"Server": 46}},
	} {
		if got := strings.Join(tooLarge("internal/api", s), "\n"); !strings.Contains(got, name) {
			t.Errorf("%s: got %q", name, got)
		}
	}
	for name, s := range map[string]size{
		"26 files": {files: 26}, "46 methods": {methods: map[string]int{"Node": 46}},
	} {
		if got := strings.Join(tooLarge("orchestrator", s), "\n"); !strings.Contains(got, name) {
			t.Errorf("%s: got %q", name, got)
		}
	}
}

func tooLarge(pkg string, s size) (problems []string) {
	if strings.HasPrefix(pkg, "workqueue") {
		for _, limit := range []struct {
			has, most int
			of        string
		}{{s.files, roomFiles, "files"}, {s.lines, roomLines, "lines"}, {s.names, roomNames, "exported names"}} {
			if limit.has > limit.most {
				problems = append(problems, fmt.Sprintf("%s has %d %s, more than %d: find what in it is a thing of its own, "+
					"and give that a package in workqueue, or put what only rooms need in workqueue/internal",
					pkg, limit.has, limit.of, limit.most))
			}
		}
	}
	inAPI := strings.HasPrefix(pkg, "internal/api")
	if inAPI {
		for _, limit := range []struct {
			has, most int
			of        string
		}{{s.files, apiFiles, "files"}, {s.lines, apiLines, "lines"}} {
			if limit.has > limit.most {
				problems = append(problems, fmt.Sprintf("%s has %d %s, more than %d: give the operations on one noun a package "+
					"in internal/api, by the names that internal/cli has; what all rooms need is internal/api/kernel's",
					pkg, limit.has, limit.of, limit.most))
			}
		}
	}
	inNode := strings.HasPrefix(pkg, "orchestrator")
	if inNode && s.files > nodeFiles {
		problems = append(problems, fmt.Sprintf("%s has %d files, more than %d: give what a node does for one purpose a "+
			"package in orchestrator; what its rooms share is orchestrator/internal's", pkg, s.files, nodeFiles))
	}
	for name, methods := range s.methods {
		most, known := largeTypes()[pkg+"."+name]
		if !known {
			most = typeMethods
		}
		if inAPI && !known {
			most = apiMethods
		}
		if pkg == "orchestrator" {
			most = nodeMethods
		}
		if methods > most {
			problems = append(problems,
				fmt.Sprintf("%s.%s has %d methods, more than %d: give what it does for one purpose to a "+
					"type of its own", pkg, name, methods, most))
		}
	}
	slices.Sort(problems)
	return problems
}

// sizes measures every package of the module that is not generated.
func sizes(t *testing.T, root string) map[string]size {
	t.Helper()
	all := map[string]size{}
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && outside(path):
			return filepath.SkipDir
		case entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go"):
			return nil
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil || ast.IsGenerated(file) {
			return err
		}
		pkg := filepath.ToSlash(dir)
		s := all[pkg]
		s.files++
		s.lines += strings.Count(string(text), "\n")
		s.add(file)
		all[pkg] = s
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func (s *size) add(file *ast.File) {
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv == nil {
				s.count(d.Name)
			} else if name := receiver(d.Recv.List[0].Type); name != "" {
				if s.methods == nil {
					s.methods = map[string]int{}
				}
				s.methods[name]++
			}
		case *ast.GenDecl:
			for _, spec := range d.Specs {
				if typ, ok := spec.(*ast.TypeSpec); ok {
					s.count(typ.Name)
				}
			}
		}
	}
}

func (s *size) count(name *ast.Ident) {
	if name.IsExported() {
		s.names++
	}
}

func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
