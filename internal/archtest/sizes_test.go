package archtest_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path"
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

// Limits of a package. One that outgrows them has become two things.
const (
	packageFiles = 40
	packageLines = 6000
	packageNames = 90 // exported, in the store
	typeMethods  = 60
	seamMethods  = 45 // of the node, and of the API
)

// totals are what the whole may have. They may only go down: lower them with what a change removes; who raises one
// says why in the commit.
var totals = struct{ packages, files, lines, tests int }{
	packages: 109, // those with files that are not tests
	files:    622, // without tests and generated code, as are lines
	lines:    151328,
	tests:    79176, // lines of them
}

// largeTypes are those that have more methods, with how many they may have.
func largeTypes() map[string]int {
	return map[string]int{"internal/testing/apitest.Bench": 64}
}

func TestTotalsOnlyGoDown(t *testing.T) {
	t.Parallel()
	packages, tests := sizes(t)
	var files, lines int
	for _, s := range packages {
		files += s.files
		lines += s.lines
	}
	for _, total := range []struct {
		of        string
		has, most int
	}{
		{"packages", len(packages), totals.packages}, {"files", files, totals.files}, {"lines", lines, totals.lines},
		{"lines of tests", tests, totals.tests},
	} {
		switch {
		case total.has > total.most:
			t.Errorf("%d %s, more than %d: remove as many elsewhere, or raise totals and say why", total.has, total.of,
				total.most)
		case total.has < total.most-total.most/100:
			t.Errorf("%d %s, where totals allow %d: lower it", total.has, total.of, total.most)
		}
	}
}

func TestPackagesStaySmall(t *testing.T) {
	t.Parallel()
	packages, _ := sizes(t)
	for pkg, s := range packages {
		for _, problem := range tooLarge(pkg, s) {
			t.Error(problem)
		}
	}
}

func tooLarge(pkg string, s size) (problems []string) {
	limits := []struct {
		has, most int
		of        string
	}{{s.files, packageFiles, "files"}, {s.lines, packageLines, "lines"}}
	methods := typeMethods
	switch {
	case within(pkg, "workqueue"):
		limits = append(limits, struct {
			has, most int
			of        string
		}{s.names, packageNames, "exported names"})
	case pkg == "orchestrator", within(pkg, "internal/api"):
		methods = seamMethods
	}
	for _, limit := range limits {
		if limit.has > limit.most {
			problems = append(problems, fmt.Sprintf("%s has %d %s, more than %d: find what in it is a thing of its own, "+
				"and give that a package beside it", pkg, limit.has, limit.of, limit.most))
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

func within(pkg, tree string) bool { return pkg == tree || strings.HasPrefix(pkg, tree+"/") }

// sizes measures every package of the module, without its tests and what is generated, and counts the lines of tests.
func sizes(t *testing.T) (packages map[string]size, tests int) {
	t.Helper()
	packages = map[string]size{}
	walk(t, func(at string, text []byte) error {
		count := strings.Count(string(text), "\n")
		if strings.HasSuffix(at, "_test.go") {
			tests += count
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), at, text, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil || ast.IsGenerated(file) {
			return err
		}
		s := packages[path.Dir(at)]
		s.files++
		s.lines += count
		s.add(file)
		packages[path.Dir(at)] = s
		return nil
	}, ".go")
	return packages, tests
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
