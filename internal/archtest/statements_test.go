package archtest_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// madeStatements are the files whose statements are made while the program runs, with what may stand in them.
func madeStatements() map[string]string {
	return map[string]string{
		"tools/demo/chapters.go":              "no statement, but words",
		"internal/intake/sql.go":              "the query that an operator writes, which is what it is for",
		"migrations/grant.go":                 "names of roles and tables, quoted",
		"workqueue/erasure/beside.go":         "names of tables and columns that stand in the file",
		"workqueue/settle/lost.go":            "parts that are constants",
		"workqueue/internal/pg/collect.go":    "a statement, and the number of a parameter",
		"workqueue/database/pool.go":          "settings of the connection, quoted",
		"internal/testing/storetest/bench.go": "a table and a column that tests name, quoted",
	}
}

// asSQL finds text that is a statement, or a part of one.
var asSQL = regexp.MustCompile(`\b(SELECT|INSERT INTO|UPDATE|DELETE FROM|WHERE|FROM|GRANT|REVOKE|COPY|SET) `)

// PROOF: who may do what, 11. Statements are put together of constants alone: a value reaches PostgreSQL as a
// parameter. What cannot be one, like the name of a role, is quoted in the few files that are named here.
func TestStatementsAreConstant(t *testing.T) {
	t.Parallel()
	found, constants := 0, map[string]map[string]bool{}
	walk(t, func(at string, text []byte) error {
		if strings.HasSuffix(at, "_test.go") || strings.HasPrefix(at, "examples/") || strings.HasPrefix(at, "tools/bench/") {
			return nil
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, at, text, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		dir := filepath.Join("..", "..", filepath.Dir(at))
		if constants[dir] == nil {
			constants[dir] = constantsOf(t, dir)
		}
		for _, made := range variableSQL(file, constants[dir]) {
			if found++; madeStatements()[at] == "" {
				t.Errorf("%s: a statement is made of what is not a constant; use a parameter", files.Position(made))
			}
		}
		return nil
	}, ".go")
	if found < len(madeStatements()) {
		t.Errorf("%d statements that are made were found, of %d files; the scan looks in the wrong place", found,
			len(madeStatements()))
	}
}

// variableSQL finds expressions that join text of SQL with something that is not a constant.
func variableSQL(file *ast.File, constants map[string]bool) (at []token.Pos) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch e := n.(type) {
		case *ast.BinaryExpr:
			if e.Op != token.ADD {
				return true
			}
			sql, variable := leaves(e, constants)
			if sql && variable {
				at = append(at, e.Pos())
			}
			return false
		case *ast.CallExpr:
			if f, ok := e.Fun.(*ast.SelectorExpr); ok && strings.HasPrefix(f.Sel.Name, "Sprint") && len(e.Args) > 1 {
				if sql, _ := leaves(e.Args[0], constants); sql {
					at = append(at, e.Pos())
				}
			}
		}
		return true
	})
	return at
}

// leaves says of what is joined by + whether a part is SQL, and whether a part is not a constant.
func leaves(e ast.Expr, constants map[string]bool) (sql, variable bool) {
	switch e := e.(type) {
	case *ast.BinaryExpr:
		sql, variable = leaves(e.X, constants)
		moreSQL, moreVariable := leaves(e.Y, constants)
		return sql || moreSQL, variable || moreVariable
	case *ast.ParenExpr:
		return leaves(e.X, constants)
	case *ast.BasicLit:
		return asSQL.MatchString(e.Value), false
	case *ast.Ident:
		return false, !constants[e.Name]
	case *ast.SelectorExpr: // of another package: a variable of ours would be a field, in lower case
		return false, !ast.IsExported(e.Sel.Name)
	case *ast.CallExpr: // of columns that follow from the fields of a struct, with constant arguments
		f, ok := e.Fun.(*ast.SelectorExpr)
		columns := []string{"SettingsToRead", "SettingColumns", "SettingParameters", "SettingArrays", "SettingElements"}
		return false, !ok || !slices.Contains(columns, f.Sel.Name) ||
			slices.ContainsFunc(e.Args, func(arg ast.Expr) bool { _, ok := arg.(*ast.BasicLit); return !ok })
	default:
		return false, true
	}
}

// constantsOf returns the names of the constants in the files of a directory, those of functions included.
func constantsOf(t *testing.T, dir string) map[string]bool {
	t.Helper()
	names := map[string]bool{}
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if d, ok := n.(*ast.GenDecl); ok && d.Tok == token.CONST {
				for _, spec := range d.Specs {
					for _, name := range spec.(*ast.ValueSpec).Names { //nolint:forcetypeassert // of a const it is one
						names[name.Name] = true
					}
				}
			}
			return true
		})
	}
	return names
}

// otherClocks are the files with a clock of SQL that is not tranche_now, which tests move.
func otherClocks() map[string]string {
	transactions := "compared with when PostgreSQL says that a transaction began"
	return map[string]string{
		"internal/archtest/statements_test.go": "this rule",
		"internal/testing/testenv/database.go": "moves tranche_now",
		"migrations/00001_foundation.sql":      "tranche_now itself",
		"migrations/foundation_test.go":        "what tranche_now is in a plan",
		"migrations/lock.go":                   transactions,
		"workqueue/database/patience.go":       transactions,
		"workqueue/health/metrics.go":          transactions,
		"workqueue/inspect/nodes.go":           "compared with when PostgreSQL says that a statement began",
		"endpoints/pginbox/inbox.go":           "the database of a service",
		"examples/bank/ledger.go":              "the database of a service",
	}
}

var otherClock = regexp.MustCompile(`(?i)clock_timestamp|statement_timestamp|transaction_timestamp|current_timestamp|` +
	`localtimestamp|current_date|timeofday|(?:^|[^.\w])now\(\)`)

// Statements take the time from tranche_now alone, those of tests too.
func TestSQLHasOneClock(t *testing.T) {
	t.Parallel()
	found := map[string]bool{}
	walk(t, func(at string, text []byte) error {
		for _, part := range sqlIn(t, at, text) {
			if other := otherClock.FindString(part); other != "" {
				found[at] = true
				if otherClocks()[at] == "" {
					t.Errorf("%s: %q; want tranche_now()", at, other)
				}
			}
		}
		return nil
	}, ".go", ".sql")
	for file := range otherClocks() {
		if !found[file] {
			t.Errorf("%s has no other clock; take it off the list", file)
		}
	}
}

// sqlIn returns the lines without comments of a file of SQL, and the texts of a file of Go.
func sqlIn(t *testing.T, name string, text []byte) (parts []string) {
	t.Helper()
	if filepath.Ext(name) == ".sql" {
		for line := range strings.Lines(string(text)) {
			code, _, _ := strings.Cut(line, "--")
			parts = append(parts, code)
		}
		return parts
	}
	file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if literal, ok := n.(*ast.BasicLit); ok && literal.Kind == token.STRING {
			parts = append(parts, literal.Value)
		}
		return true
	})
	return parts
}
