package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/constant"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// waitsPage has a table of waits, written by hand, and below it the generated values of the durations that it names.
const waitsPage = "docs/waits.md"

// waiting returns the trees whose durations need a comment and may be named on the page.
func waiting() []string {
	return []string{
		"bitfield", "orchestrator", "workqueue", "endpoints", "gather", "internal/access", "internal/alerts", "internal/api",
		"internal/cli", "internal/connections", "internal/embedded", "internal/health", "internal/intake",
		"internal/live", "internal/metrics", "internal/ingest", "internal/pull",
		"internal/startup", "internal/trackers", "migrations", "cmd",
	}
}

// codeName matches Go names in code spans.
var codeName = regexp.MustCompile("`([A-Za-z]+[a-z][A-Z][A-Za-z]*)`")

// waits returns rows for the durations that the page mentions. Durations need comments, and names must exist.
func waits(root string) (string, error) {
	packages, set, err := sources(root)
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
		missing[string(name[1])] = !strings.HasSuffix(string(name[1]), "Error") // a type, not a duration
	}
	rows, err := durationRows(packages, set, missing)
	for name, unknown := range missing {
		if unknown && err == nil {
			err = fmt.Errorf("%s names %s, which is not a duration of the code", waitsPage, name)
		}
	}
	slices.Sort(rows)
	return "\n| name | value | package |\n|---|---|---|\n" + strings.Join(rows, "") + "\n", err
}

// durationRows returns a row for each duration named in missing, and clears its entry.
func durationRows(
	packages map[string][]*ast.File, set *token.FileSet, missing map[string]bool,
) (rows []string, err error) {
	for pkg, files := range packages {
		all := durationsOf(files, set)
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

// described returns an error if a duration has no comment: neither its own nor that of its predecessor in the list.
func described(all []duration) error {
	for i, d := range all {
		if d.words == "" && (i == 0 || all[i-1].list != d.list) {
			return fmt.Errorf("%s has no comment: say above it who waits for what, and what then", d.name)
		}
	}
	return nil
}

func sources(root string) (map[string][]*ast.File, *token.FileSet, error) {
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
			if slices.Contains([]string{"endpoints/endpointstest", "internal/testing/apitest", "internal/testing/nodetest",
				"internal/testing/storetest"}, pkg) { // only for tests
				return nil
			}
			file, err := parser.ParseFile(set, name, nil, parser.SkipObjectResolution|parser.ParseComments)
			packages[pkg] = append(packages[pkg], file)
			return err
		})
		if err != nil {
			return nil, nil, err
		}
	}
	return packages, set, nil
}

type duration struct {
	name  string
	value string // as pages write it; empty for lists
	words string // its comment; empty if the comment of its predecessor in the list covers it
	at    token.Pos
	list  token.Pos // of its declaration
}

// durationsOf lists a package's durations in order, by their types.
func durationsOf(files []*ast.File, set *token.FileSet) (all []duration) {
	info := types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Defs: map[*ast.Ident]types.Object{}}
	config := types.Config{Importer: onlyTime{}, IgnoreFuncBodies: true, Error: func(error) {}} // of other imports
	_, _ = config.Check("", set, files, &info)
	for _, file := range files {
		for general, value := range values(file) {
			said := words(general, value)
			for i, name := range value.Names {
				if i == len(value.Values) {
					break
				}
				e := value.Values[i]
				if call, ok := e.(*ast.CallExpr); ok && len(call.Args) == 1 { // to a type of another package
					e = call.Args[0]
				}
				if isTime(info.TypeOf(name)) || isTime(info.TypeOf(e)) {
					all = append(all, duration{name.Name, written(info.Types[e].Value), said, name.Pos(), general.Pos()})
				}
				said = "" // covers the rest as well
			}
		}
	}
	slices.SortFunc(all, func(a, b duration) int { return cmp.Compare(a.at, b.at) })
	return all
}

// isTime reports whether a value is a duration, or a list of some.
func isTime(t types.Type) bool {
	_, function := t.(*types.Signature)
	return t != nil && !function && strings.Contains(types.TypeString(t, nil), "time.Duration")
}

// onlyTime imports durations and their units, and no other package.
type onlyTime struct{}

func (onlyTime) Import(path string) (*types.Package, error) {
	if path != "time" {
		return nil, errors.New("not needed")
	}
	pkg := types.NewPackage(path, path)
	span := types.NewNamed(types.NewTypeName(0, pkg, "Duration", nil), types.Typ[types.Int64], nil)
	pkg.Scope().Insert(span.Obj())
	for name, unit := range map[string]time.Duration{
		"Microsecond": time.Microsecond, "Millisecond": time.Millisecond, "Second": time.Second,
		"Minute": time.Minute, "Hour": time.Hour,
	} {
		pkg.Scope().Insert(types.NewConst(0, pkg, name, span, constant.MakeInt64(int64(unit))))
	}
	pkg.MarkComplete()
	return pkg, nil
}

// values yields the package-level constants and variables of a file, with their declarations.
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

// words returns the comment of a constant: its own, or the list's if it is the first.
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

// written formats a duration in the largest unit that fits at least once.
func written(v constant.Value) string {
	if v == nil || v.Kind() != constant.Int {
		return ""
	}
	ns, _ := constant.Int64Val(v)
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
