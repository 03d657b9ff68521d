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

// Limits of a package, wherever it is. One that outgrows them has become two things. Some have a limit of their own:
// see halls and largeTypes.
const (
	roomFiles   = 25
	roomLines   = 3500
	roomNames   = 90 // of the store
	typeMethods = 60
	seamMethods = 45 // of the node, and of the API
)

// hall is a package that is larger than a room, with its limits, which may only shrink, and the reason.
type hall struct {
	files, lines int
	why          string
}

func halls() map[string]hall {
	return map[string]hall{
	}
}

// largeTypes are those that are larger, with how many methods they may have. They may only shrink: what is new has a
// type of its own, by what it is about.
func largeTypes() map[string]int {
	return map[string]int{"internal/api/apitest.Bench": 64}
}

func TestRoomsStaySmall(t *testing.T) {
	t.Parallel()
	all := sizes(t, filepath.Join("..", ".."))
	for pkg, s := range all {
		for _, problem := range tooLarge(pkg, s) {
			t.Error(problem)
		}
	}
	if len(all) < 100 {
		t.Errorf("only %d packages were found; the scan looks in the wrong place", len(all))
	}
	for pkg := range halls() {
		if s := all[pkg]; s.files <= roomFiles && s.lines <= roomLines {
			t.Errorf("%s is a room by now: take it out of halls", pkg)
		}
	}
}

func TestALargeRoomIsFound(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		pkg  string
		size size
		want string
	}{
		{"workqueue/redo", size{files: 26}, "26 files, more than 25: find what in it is a thing of its own"},
		{"workqueue/redo", size{lines: 3501}, "3501 lines"},
		{"workqueue/redo", size{names: 91}, "91 exported names"},
		{"workqueue/redo", size{methods: map[string]int{"Store": 61}}, "61 methods"},
		{"internal/api", size{files: 26}, "package in internal/api"},
		{"internal/api", size{methods: map[string]int{"Server": 46}}, "46 methods"},
		{"orchestrator", size{lines: 3501}, "package in orchestrator"},
		{"orchestrator", size{methods: map[string]int{"Node": 46}}, "46 methods"},
		{"endpoints", size{files: 26}, "endpoints/internal"},
		{"internal/new", size{files: 26}, "26 files"},
	} {
		if got := strings.Join(tooLarge(tc.pkg, tc.size), "\n"); !strings.Contains(got, tc.want) {
			t.Errorf("%s: got %q, want %q", tc.pkg, got, tc.want)
		}
	}
}

func tooLarge(pkg string, s size) (problems []string) {
	files, lines := roomFiles, roomLines
	if own, ok := halls()[pkg]; ok {
		files, lines = own.files, own.lines
	}
	limits := []struct {
		has, most int
		of        string
	}{{s.files, files, "files"}, {s.lines, lines, "lines"}}
	methods := typeMethods
	switch {
	case within(pkg, "workqueue"):
		limits = append(limits, struct {
			has, most int
			of        string
		}{s.names, roomNames, "exported names"})
	case pkg == "orchestrator", within(pkg, "internal/api"):
		methods = seamMethods
	}
	for _, limit := range limits {
		if limit.has > limit.most {
			problems = append(problems, fmt.Sprintf("%s has %d %s, more than %d: %s", pkg, limit.has, limit.of, limit.most,
				place(pkg)))
		}
	}
	for name, has := range s.methods {
		most, known := largeTypes()[pkg+"."+name]
		if !known {
			most = methods
		}
		if has > most {
			problems = append(problems, fmt.Sprintf("%s.%s has %d methods, more than %d: give what it does for one purpose to "+
				"a type of its own", pkg, name, has, most))
		}
	}
	slices.Sort(problems)
	return problems
}

// place says where a thing belongs that is too much for a package.
func place(pkg string) string {
	switch {
	case within(pkg, "workqueue"):
		return "find what in it is a thing of its own, and give that a package in workqueue, or put what only rooms " +
			"need in workqueue/internal"
	case within(pkg, "internal/api"):
		return "give the operations on one noun a package in internal/api, by the names that internal/cli has; what all " +
			"rooms need is internal/api/kernel's"
	case within(pkg, "orchestrator"):
		return "give what a node does for one purpose a package in orchestrator; what its rooms share is " +
			"orchestrator/internal's"
	case within(pkg, "endpoints"):
		return "what authors of services do not write with is a room's in endpoints/internal"
	case within(pkg, "internal/cli"), within(pkg, "cmd"):
		return "commands on one noun are a package in internal/cli; cmd has flags and wiring only"
	default:
		return "give what it does for one purpose a package inside of it"
	}
}

func within(pkg, tree string) bool { return pkg == tree || strings.HasPrefix(pkg, tree+"/") }

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
