package main

import (
	"bytes"
	"cmp"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// waitsPage says what waits, in a table that is written by hand, and ends with the values of the times that this names.
const waitsPage = "docs/waits.md"

// waiting lists the trees whose durations have to have a comment, and may be named there.
func waiting() []string {
	return []string{
		"bitfield", "orchestrator", "workqueue", "endpoints", "gather", "internal/access", "internal/alerts", "internal/api",
		"internal/cli", "internal/connections", "internal/embedded", "internal/health", "internal/intake",
		"internal/live", "internal/metrics", "internal/ingest", "internal/pull",
		"internal/startup", "internal/trackers", "migrations", "cmd",
	}
}

// notWaiting lists trees below them: kits for tests, which no one runs in earnest.
func notWaiting() []string {
	return []string{"endpoints/endpointstest", "internal/testing/apitest", "internal/testing/nodetest",
		"internal/testing/storetest"}
}

// codeName matches names of the code, among what a page writes as code.
var codeName = regexp.MustCompile("`([A-Za-z]+[a-z][A-Z][A-Za-z]*)`")

// waits lists the named durations that the page mentions before the list. A duration that no one has said a word of is
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

// duration is a named length of time in the code: a constant, or a list of them in a variable.
type duration struct {
	name  string
	value string // as pages write it; empty for lists
	words string // its comment; empty when it has none of its own, and the one above it in its list speaks for both
	at    token.Pos
	list  token.Pos // of the declaration that it stands in
}

// durationsOf lists those of one package, as they stand in its files. A name counts when its type is a duration, or
// when its value is made of a unit of time or of another such name.
func durationsOf(files []*ast.File) (all []duration) {
	specs := declarations{}
	for _, file := range files {
		for general, value := range values(file) {
			said := words(general, value)
			for i, name := range value.Names {
				if i < len(value.Values) {
					specs[name.Name] = declared{value.Type, value.Values[i], said, name.Pos(), general.Pos()}
				}
				said = "" // for the others as well
			}
		}
	}
	for name, d := range specs {
		if specs.isTime(d) {
			all = append(all, duration{name, written(specs.measure(d.value)), d.words, d.at, d.list})
		}
	}
	slices.SortFunc(all, func(a, b duration) int { return cmp.Compare(a.at, b.at) })
	return all
}

// values yields the constants and variables at the top of a file, and the declaration that each stands in.
func values(file *ast.File) func(yield func(*ast.GenDecl, *ast.ValueSpec) bool) {
	return func(yield func(*ast.GenDecl, *ast.ValueSpec) bool) {
		for _, decl := range file.Decls {
			general, ok := decl.(*ast.GenDecl)
			if !ok || general.Tok != token.CONST && general.Tok != token.VAR {
				continue
			}
			for _, spec := range general.Specs {
				if !yield(general, spec.(*ast.ValueSpec)) {
					return
				}
			}
		}
	}
}

// words are what is said of a constant: above it, behind it, or above the list that it begins.
func words(general *ast.GenDecl, value *ast.ValueSpec) string {
	said := value.Doc.Text() + value.Comment.Text()
	if said == "" && general.Specs[0] == value {
		said = general.Doc.Text()
	}
	said = strings.Join(strings.Fields(said), " ")
	for _, name := range value.Names {
		said = strings.TrimPrefix(said, name.Name+" is ")
		if bounds, ok := strings.CutPrefix(said, name.Name+" bounds "); ok {
			said = "bounds " + bounds
		}
	}
	return strings.TrimSuffix(said, ".")
}

type declarations map[string]declared

// declared is a constant or variable at the top of a file.
type declared struct {
	type_ ast.Expr // nil when it says none
	value ast.Expr
	words string
	at    token.Pos
	list  token.Pos
}

// isTime reports whether a name is a duration, or a list of them.
func (specs declarations) isTime(d declared) bool {
	return d.type_ != nil && specs.mentionsTime(d.type_) || specs.mentionsTime(d.value)
}

// mentionsTime reports whether a unit of time, or a name that is made of one, stands in a piece of code.
func (specs declarations) mentionsTime(in ast.Node) (found bool) {
	ast.Inspect(in, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncLit:
			return false
		case *ast.SelectorExpr:
			pkg, ok := n.X.(*ast.Ident)
			found = found || ok && pkg.Name == "time" && (unit(n.Sel.Name) > 0 || n.Sel.Name == "Duration")
		case *ast.Ident:
			if other, ok := specs[n.Name]; ok && other.value != in && !found {
				found = specs.isTime(other)
			}
		}
		return !found
	})
	return found
}

// measure is the value of an expression in nanoseconds; unknown for what is no number.
func (specs declarations) measure(e ast.Expr) constant.Value {
	switch e := e.(type) {
	case *ast.BasicLit:
		return constant.MakeFromLiteral(e.Value, e.Kind, 0)
	case *ast.ParenExpr:
		return specs.measure(e.X)
	case *ast.Ident:
		if other, ok := specs[e.Name]; ok {
			return specs.measure(other.value)
		}
	case *ast.SelectorExpr:
		if d := unit(e.Sel.Name); d > 0 {
			return constant.MakeInt64(int64(d))
		}
	case *ast.CallExpr: // a conversion
		if len(e.Args) == 1 {
			return specs.measure(e.Args[0])
		}
	case *ast.BinaryExpr:
		x, y := specs.measure(e.X), specs.measure(e.Y)
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

// unit is a unit of time by its name in package time; 0 for what is none.
func unit(name string) time.Duration {
	return map[string]time.Duration{
		"Microsecond": time.Microsecond, "Millisecond": time.Millisecond, "Second": time.Second,
		"Minute": time.Minute, "Hour": time.Hour,
	}[name]
}

// written writes a duration as pages do: in the largest unit of which there is at least one.
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
