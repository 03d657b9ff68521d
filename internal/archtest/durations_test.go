package archtest_test

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// A default without a name would stand in no table.
func TestDefaultsOfTimeHaveNames(t *testing.T) {
	t.Parallel()
	for pkg, files := range sources(t, filepath.Join("..", "..")) {
		for name, file := range files {
			for _, found := range namelessDefaults(file) {
				t.Errorf("%s: %s of %s has a default like %s without a name; make it a constant", name, found, pkg,
					"5 * time.Second")
			}
		}
	}
}

func TestADefaultWithoutANameIsFound(t *testing.T) {
	t.Parallel()
	const named = "package a\nfunc (c C) withDefaults() C { c.D = cmp.Or(c.D, DefaultD); return c }"
	if found := namelessDefaults(parsed(t, named)); len(found) > 0 {
		t.Errorf("found %v, want none", found)
	}
	const nameless = "package a\nfunc (c C) withDefaults() C { c.D = cmp.Or(c.D, 5*time.Second); return c }"
	if found := namelessDefaults(parsed(t, nameless)); !slices.Equal(found, []string{"withDefaults"}) {
		t.Errorf("found %v, want withDefaults", found)
	}
}

// namelessDefaults lists the functions that fill in a Config and have a length of time in them.
func namelessDefaults(file *ast.File) (found []string) {
	for _, decl := range file.Decls {
		f, ok := decl.(*ast.FuncDecl)
		if !ok || !strings.EqualFold(f.Name.Name, "withDefaults") {
			continue
		}
		if f.Body != nil && mentionsTime(nil, f.Body) {
			found = append(found, f.Name.Name)
		}
	}
	return found
}

func TestDurationsAreRead(t *testing.T) {
	t.Parallel()
	const source = `package a
		const (
			one       = 3 * time.Second
			half      = one / 2
			count     = 5
			other     = b.Wait + time.Millisecond
		)
		const day time.Duration = 24 * time.Hour
		var several = [...]time.Duration{time.Second, 3 * time.Second}
		var limit = 7`
	got := map[string]string{}
	for _, w := range durationsOf(map[string]*ast.File{"a/a.go": parsed(t, source)}, "a") {
		got[w.name] = w.value
	}
	want := map[string]string{"one": "3 s", "half": "1.5 s", "other": "", "day": "1 day", "several": ""}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func parsed(t *testing.T, source string) *ast.File {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "a.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

// sources parses the trees that wait, but not their tests: by package, then by file.
func sources(t *testing.T, root string) map[string]map[string]*ast.File {
	t.Helper()
	packages := map[string]map[string]*ast.File{}
	for _, tree := range waiting() {
		err := filepath.WalkDir(filepath.Join(root, tree), func(name string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || filepath.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
				return err
			}
			file, err := filepath.Rel(root, name)
			if err != nil {
				return err
			}
			file = filepath.ToSlash(file)
			pkg := file[:strings.LastIndex(file, "/")]
			if slices.Contains(notWaiting(), pkg) {
				return nil
			}
			if packages[pkg] == nil {
				packages[pkg] = map[string]*ast.File{}
			}
			packages[pkg][file], err = parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return packages
}

// durationsOf lists those of one package. A name counts when its type is a duration, or when its value is made of a
// unit of time or of another such name.
func durationsOf(files map[string]*ast.File, pkg string) []wait {
	specs := map[string]declared{}
	for file, parsed := range files {
		for _, decl := range parsed.Decls {
			general, ok := decl.(*ast.GenDecl)
			if !ok || general.Tok != token.CONST && general.Tok != token.VAR {
				continue
			}
			for _, spec := range general.Specs {
				value := spec.(*ast.ValueSpec)
				for i, name := range value.Names {
					if i < len(value.Values) {
						specs[name.Name] = declared{file, value.Type, value.Values[i]}
					}
				}
			}
		}
	}
	var waits []wait
	for name, d := range specs {
		if isTime(specs, d) {
			waits = append(waits, wait{pkg, name, d.file, written(measure(specs, d.value))})
		}
	}
	return waits
}

// declared is a constant or variable at the top of a file.
type declared struct {
	file  string
	type_ ast.Expr // nil when it says none
	value ast.Expr
}

// isTime reports whether a name is a duration, or a list of them.
func isTime(specs map[string]declared, d declared) bool {
	return d.type_ != nil && mentionsTime(specs, d.type_) || mentionsTime(specs, d.value)
}

// mentionsTime reports whether a unit of time, or a name that is made of one, stands in a piece of code.
func mentionsTime(specs map[string]declared, in ast.Node) (found bool) {
	ast.Inspect(in, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.SelectorExpr:
			pkg, ok := n.X.(*ast.Ident)
			found = found || ok && pkg.Name == "time" && (units()[n.Sel.Name] > 0 || n.Sel.Name == "Duration")
		case *ast.Ident:
			if other, ok := specs[n.Name]; ok && other.value != in && !found {
				found = isTime(specs, other)
			}
		}
		return !found
	})
	return found
}

// measure is the value of an expression in nanoseconds; unknown for what is no number.
func measure(specs map[string]declared, e ast.Expr) constant.Value {
	switch e := e.(type) {
	case *ast.BasicLit:
		return constant.MakeFromLiteral(e.Value, e.Kind, 0)
	case *ast.ParenExpr:
		return measure(specs, e.X)
	case *ast.Ident:
		if other, ok := specs[e.Name]; ok {
			return measure(specs, other.value)
		}
	case *ast.SelectorExpr:
		if unit := units()[e.Sel.Name]; unit > 0 {
			return constant.MakeInt64(int64(unit))
		}
	case *ast.BinaryExpr:
		x, y := measure(specs, e.X), measure(specs, e.Y)
		if x.Kind() == constant.Int && y.Kind() == constant.Int {
			return operate(x, e.Op, y)
		}
	}
	return constant.MakeUnknown()
}

func operate(x constant.Value, op token.Token, y constant.Value) constant.Value {
	switch op {
	case token.ADD, token.SUB, token.MUL:
		return constant.BinaryOp(x, op, y)
	case token.QUO: // of whole numbers
		return constant.BinaryOp(x, token.QUO_ASSIGN, y)
	default:
		return constant.MakeUnknown()
	}
}

func units() map[string]time.Duration {
	return map[string]time.Duration{
		"Microsecond": time.Microsecond, "Millisecond": time.Millisecond, "Second": time.Second,
		"Minute": time.Minute, "Hour": time.Hour,
	}
}

// written writes a duration as the page does: in the largest unit of which there is at least one.
func written(v constant.Value) string {
	ns, exact := constant.Int64Val(constant.ToInt(v))
	if !exact || ns == 0 {
		return ""
	}
	d := time.Duration(ns)
	switch {
	case d == 24*time.Hour:
		return "1 day"
	case d > 24*time.Hour:
		return fmt.Sprintf("%v days", d.Hours()/24)
	case d >= time.Hour:
		return fmt.Sprintf("%v h", d.Hours())
	case d >= time.Minute:
		return fmt.Sprintf("%v min", d.Minutes())
	case d >= time.Second:
		return fmt.Sprintf("%v s", d.Seconds())
	default:
		return fmt.Sprintf("%v ms", float64(d)/float64(time.Millisecond))
	}
}
