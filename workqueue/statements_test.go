package workqueue_test

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// isSQL tells a statement by how it begins.
func isSQL(text string) bool {
	for _, word := range []string{"WITH", "SELECT", "INSERT", "UPDATE", "DELETE", "COPY", "SET"} {
		if strings.HasPrefix(strings.TrimSpace(text), word+" ") {
			return true
		}
	}
	return false
}

// source is the string constants of the store as its source states them, by package and name.
type source struct {
	pkg    string // whose names stand alone
	values map[string]constant
	parts  map[string]bool // constants that others are made of
	loose  []string        // statements that have no name
	made   int             // statements of the columns of settings, and of claims whose rows are counted
}

type constant struct {
	pkg   string
	value ast.Expr
}

func readSource(t *testing.T) *source {
	t.Helper()
	s := &source{values: map[string]constant{}, parts: map[string]bool{}}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Name() == "storetest" { // statements of tests
			return fs.SkipDir
		}
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		s.pkg = file.Name.Name
		ast.Inspect(file, s.visit)
		return nil
	})
	testenv.NoError(t, err)
	return s
}

func (s *source) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.ValueSpec:
		for i, name := range n.Names {
			if i < len(n.Values) {
				s.values[s.pkg+"."+name.Name] = constant{s.pkg, n.Values[i]}
			}
		}
		return false
	case *ast.BinaryExpr:
		if _, whole := s.text(s.pkg, n); !whole && beginsWithSQL(n) {
			s.made++
			return false
		}
	case *ast.BasicLit:
		if text := literal(n); n.Value[0] == '`' && isSQL(text) {
			s.loose = append(s.loose, text)
		}
	}
	return true
}

func beginsWithSQL(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.BinaryExpr:
		return beginsWithSQL(e.X)
	case *ast.BasicLit:
		return isSQL(literal(e))
	}
	return false
}

func literal(lit *ast.BasicLit) string {
	if lit.Kind != token.STRING {
		return ""
	}
	text, err := strconv.Unquote(lit.Value)
	if err != nil {
		return ""
	}
	return text
}

// text puts a constant of a package together; ok is false when it is not a string.
func (s *source) text(pkg string, e ast.Expr) (text string, ok bool) {
	name := ""
	switch e := e.(type) {
	case *ast.BasicLit:
		return literal(e), e.Kind == token.STRING
	case *ast.Ident:
		name = pkg + "." + e.Name
	case *ast.SelectorExpr:
		if of, ok := e.X.(*ast.Ident); ok {
			name = of.Name + "." + e.Sel.Name
		}
	case *ast.BinaryExpr:
		left, ok := s.text(pkg, e.X)
		right, also := s.text(pkg, e.Y)
		return left + right, ok && also
	}
	c, known := s.values[name]
	if !known {
		return "", false
	}
	s.parts[name] = true
	return s.text(c.pkg, c.value)
}

func (s *source) statements() map[string]string {
	all := map[string]string{}
	for name, value := range s.values {
		if text, ok := s.text(value.pkg, value.value); ok && isSQL(text) {
			all[name] = text
		}
	}
	for name := range s.parts {
		delete(all, name) // what is made of it is there
	}
	for i, text := range s.loose {
		all["statement "+strconv.Itoa(i)] = text
	}
	return all
}

// Every statement in the source of the store is one that PostgreSQL can parse and plan against the schema.
func TestEveryStatementIsPrepared(t *testing.T) {
	t.Parallel()
	b := setup(t)
	conn, err := b.Pool.Acquire(t.Context())
	testenv.NoError(t, err)
	defer conn.Release()
	source := readSource(t)
	statements := source.statements()
	testenv.Same(t, source.made, 6, "statements are put together when they are used")
	for name, sql := range statements {
		text := strings.TrimSpace(sql)
		switch {
		case strings.HasPrefix(text, "COPY"):
			empty := "PGCOPY\n\xff\r\n\x00" + strings.Repeat("\x00", 8) + "\xff\xff"
			_, err = conn.Conn().PgConn().CopyFrom(t.Context(), bytes.NewReader([]byte(empty)), sql)
		case strings.HasPrefix(text, "SET"):
			continue
		default:
			_, err = conn.Conn().PgConn().Prepare(t.Context(), "", sql, nil)
		}
		testenv.Same(t, err, nil, "%s\n%s", name, sql)
	}
	if len(statements) < 60 {
		t.Errorf("only %d statements were found: the search no longer knows how they look", len(statements))
	}
}
