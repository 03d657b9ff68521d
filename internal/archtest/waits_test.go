package archtest_test

import (
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// waiting lists the trees whose durations stand in the chapter "Every wait" of docs/design.md.
func waiting() []string {
	return []string{
		"orchestrator", "workqueue", "endpoints", "internal/api", "internal/client", "internal/embedded", "cmd",
	}
}

// notWaiting lists trees below them: kits for tests, which nobody runs in earnest.
func notWaiting() []string { return []string{"endpoints/endpointstest"} }

// wait is a named duration of the code: a constant, or a list of them in a variable.
type wait struct {
	pkg, name, file string
	value           string // as the chapter writes it; empty for lists
}

func (w wait) String() string { return w.pkg + "." + w.name }

func TestEveryWaitIsWrittenDown(t *testing.T) {
	t.Parallel()
	root := filepath.Join("..", "..")
	page, err := os.ReadFile(filepath.Join(root, "docs", "design.md"))
	if err != nil {
		t.Fatal(err)
	}
	waits := durations(t, root)
	if len(waits) < 100 {
		t.Fatalf("only %d named durations were found; the scan looks in the wrong place", len(waits))
	}
	for _, problem := range unwritten(string(page), waits) {
		t.Error(problem)
	}
}

func TestAMissingWaitIsFound(t *testing.T) {
	t.Parallel()
	const page = "## Every wait\n\n#### a\n\n| `one`, `three` | 1 s, 1 min | x |\n| `list` | … | x |\n" +
		"\n#### b\n\n## Next\n"
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

// unwritten compares durations with the tables of the chapter, package by package, in both directions.
func unwritten(page string, waits []wait) []string {
	tables := tablesOf(page)
	var problems []string
	for _, w := range waits {
		said, found := tables[w.pkg][w.name]
		delete(tables[w.pkg], w.name)
		switch {
		case !found:
			problems = append(problems, fmt.Sprintf("%s: %s (%s) is not in the table of %s of docs/design.md, "+
				"chapter Every wait: say who ends it, and what then", w.file, w.name, w.value, w.pkg))
		case w.value != "" && said != w.value:
			problems = append(problems, fmt.Sprintf("%s: %s is %s, but the page says %s", w.file, w.name, w.value, said))
		}
	}
	for pkg, rows := range tables {
		for name := range rows {
			problems = append(problems, fmt.Sprintf("%s of %s stands in docs/design.md, but not in the code", name, pkg))
		}
	}
	slices.Sort(problems)
	return problems
}

// tablesOf reads the chapter: by package (a heading of the fourth level), then name, the value beside it. A row may
// have several names and as many values, with commas between them.
func tablesOf(page string) map[string]map[string]string {
	_, chapter, _ := strings.Cut(page, "\n## Every wait\n")
	if strings.HasPrefix(page, "## Every wait\n") {
		chapter = page
	}
	chapter, _, _ = strings.Cut(strings.TrimPrefix(chapter, "## Every wait\n"), "\n## ")
	name := regexp.MustCompile("`(\\w+)`")
	tables := map[string]map[string]string{}
	for section := range strings.SplitSeq(chapter, "\n#### ") {
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

// durations lists the named durations of the trees that wait, but not of their tests.
func durations(t *testing.T, root string) []wait {
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
	var waits []wait
	for pkg, files := range packages {
		waits = append(waits, durationsOf(files, pkg)...)
	}
	return waits
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
	found := false
	look := func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.SelectorExpr:
			pkg, ok := n.X.(*ast.Ident)
			found = found || ok && pkg.Name == "time" && (units()[n.Sel.Name] > 0 || n.Sel.Name == "Duration")
		case *ast.Ident:
			if other, ok := specs[n.Name]; ok && other.value != d.value && !found {
				found = isTime(specs, other)
			}
		}
		return !found
	}
	if d.type_ != nil {
		ast.Inspect(d.type_, look)
	}
	ast.Inspect(d.value, look)
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

// written writes a duration as the chapter does: in the largest unit of which there is at least one.
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
