package archtest_test

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/tranchehq/tranche"

type imported struct {
	file string // from the module's root, with slashes
	path string
}

func (i imported) pkg() string { return path.Dir(i.file) }

func (i imported) inTest() bool { return strings.HasSuffix(i.file, "_test.go") }

func TestImportsPointDown(t *testing.T) {
	t.Parallel()
	var imports []imported
	walk(t, func(at string, text []byte) error {
		found, err := importsOf(at, text)
		imports = append(imports, found...)
		return err
	}, ".go")
	if len(imports) < 100 {
		t.Fatalf("only %d imports were found; the scan looks in the wrong place", len(imports))
	}
	for _, problem := range check(rules(), imports) {
		t.Error(problem)
	}
}

func TestARuleCanFail(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		imported
		want string // part of the problem
	}{
		"up": {imported{file: "workqueue/run.go", path: module + "/orchestrator"}, "workqueue must not import orchestrator"},
		"up, from a test": {imported{file: "workqueue/run_test.go", path: module + "/orchestrator"},
			"must not import orchestrator"},
		"below an allowed one": {imported{file: "endpoints/reply.go", path: module + "/bitfield/tracker"},
			"must not import bitfield/tracker"},
		"servers in code": {imported{file: "cmd/tranche/main.go", path: module + "/internal/testing/testenv"},
			"must not import internal/test"},
		"a module in the set": {imported{file: "bitfield/set.go", path: "github.com/google/uuid"},
			"must not import github.com"},
		"like an allowed one": {imported{file: "bitfield/tracker/t.go", path: "github.com/jackc/pgx/v55"}, "must not import"},
		"no rule":             {imported{file: "internal/new/new.go", path: "fmt"}, "internal/new has no rule"},
	} {
		got := strings.Join(check(rules(), []imported{test.imported}), "\n")
		if !strings.Contains(got, test.want) {
			t.Errorf("%s: got %q, want %q", name, got, test.want)
		}
	}
}

// check returns a line for each import that breaks its rule.
func check(rules map[string]rule, imports []imported) []string {
	var problems []string
	for _, i := range imports {
		rule, found := find(rules, i.pkg())
		switch {
		case !found:
			problems = append(problems, fmt.Sprintf("package %s has no rule; add one to rules_test.go", i.pkg()))
		case !rule.allows(i):
			problems = append(problems, fmt.Sprintf("%s: %s must not import %s",
				i.file, i.pkg(), strings.TrimPrefix(i.path, module+"/")))
		}
	}
	slices.Sort(problems)
	return slices.Compact(problems)
}

// find returns the rule of a package; that of its own goes before one of a tree.
func find(rules map[string]rule, pkg string) (rule, bool) {
	if own, ok := rules[pkg]; ok {
		return own, true
	}
	for pattern, rule := range rules {
		if matches(pattern, pkg) {
			return rule, true
		}
	}
	return rule{}, false
}

func (r rule) allows(i imported) bool {
	own, isOwn := strings.CutPrefix(i.path, module+"/")
	if !isOwn {
		standard := !strings.Contains(strings.Split(i.path, "/")[0], ".")
		return standard || r.others == nil || i.inTest() ||
			slices.ContainsFunc(r.others, func(m string) bool { return matches(m+"/...", i.path) })
	}
	allowed := r.own
	if i.inTest() {
		allowed = slices.Concat(r.own, r.tests, []string{i.pkg()})
	}
	return slices.ContainsFunc(allowed, func(pattern string) bool { return matches(pattern, own) })
}

// matches reports whether a path is the pattern, or in the tree that it stands for.
func matches(pattern, pkg string) bool {
	root, tree := strings.CutSuffix(pattern, "/...")
	return pkg == root || tree && strings.HasPrefix(pkg, root+"/")
}

// walk calls f with each file of the module that ends so: its path from the root, with slashes, and its text.
func walk(t *testing.T, f func(at string, text []byte) error, ext ...string) {
	t.Helper()
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(name string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && name != root && outside(name):
			return fs.SkipDir
		case entry.IsDir() || !slices.Contains(ext, filepath.Ext(name)):
			return nil
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		at, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		return f(filepath.ToSlash(at), text)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// outside reports whether a directory is not part of the module.
func outside(dir string) bool {
	base := filepath.Base(dir)
	if base == "testdata" || base == "node_modules" || strings.HasPrefix(base, ".") || strings.HasPrefix(base, "_") {
		return true
	}
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	return err == nil
}

func importsOf(file string, source []byte) ([]imported, error) {
	parsed, err := parser.ParseFile(token.NewFileSet(), file, source, parser.ImportsOnly)
	if err != nil {
		return nil, err
	}
	var imports []imported
	for _, spec := range parsed.Imports {
		target, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			return nil, err
		}
		imports = append(imports, imported{file: file, path: target})
	}
	return imports, nil
}

// doorstep is what comes with package endpoints into a module of one's own, as README.md says. What is added here is
// added to the programs of all who write services.
var doorstep = []string{
	"github.com/go-json-experiment/json",
	"github.com/google/uuid",
	"github.com/klauspost/compress",
	"github.com/nats-io/nats.go",
	"github.com/nats-io/nkeys",
	"github.com/nats-io/nuid",
	"github.com/synadia-io/orbit.go/natscontext",
	"go.uber.org/multierr",
	"go.uber.org/zap",
	"golang.org/x/crypto",
	"golang.org/x/net",
	"golang.org/x/sync",
	"golang.org/x/sys",
}

const ownProgram = `package main

import (
	"context"

	"github.com/tranchehq/tranche/endpoints"
)

func main() {
	nc, err := endpoints.Connect()
	if err != nil {
		panic(err)
	}
	svc, err := endpoints.New(nc, endpoints.Config{Name: "own"})
	if err == nil {
		err = endpoints.HandleEach(svc, "own", func(_ context.Context, in string) (string, error) { return in, nil })
	}
	if err == nil {
		err = svc.Run(context.Background())
	}
	if err != nil {
		panic(err)
	}
}
`

// TestAModuleOfOnesOwn builds a service in another module, and holds what comes with it against the list.
func TestAModuleOfOnesOwn(t *testing.T) {
	t.Parallel()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	sums, err := os.ReadFile(filepath.Join(root, "go.sum"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string]string{
		"main.go": ownProgram, "go.sum": string(sums),
		"go.mod": "module example.com/own\n\ngo 1.26.0\n\n" +
			"require " + module + " v0.0.0\n\nreplace " + module + " => " + root + "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	in := func(args ...string) string {
		run := exec.CommandContext(t.Context(), "go", args...)
		run.Dir, run.Env = dir, append(os.Environ(), "GOFLAGS="+os.Getenv("GOFLAGS")+" -mod=mod", "GOWORK=off")
		var errs strings.Builder
		run.Stderr = &errs
		said, err := run.Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s", run, err, errs.String())
		}
		return string(said)
	}
	in("build", "-o", filepath.Join(dir, "own"), ".")
	modules := strings.Fields(in("list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}", "."))
	slices.Sort(modules)
	modules = slices.Compact(modules)
	for _, path := range modules {
		if path != module && !slices.Contains(doorstep, path) {
			t.Errorf("module %s has come in with package endpoints; `go mod why -m %[1]s` says by whom", path)
		}
	}
	for _, path := range doorstep {
		if !slices.Contains(modules, path) {
			t.Errorf("module %s does not come in any more: take it out of this list and of README.md", path)
		}
	}
	text, err := os.ReadFile(filepath.Join(root, "README.md"))
	if said := fmt.Sprintf("%d modules", len(doorstep)); err != nil || !strings.Contains(string(text), said) {
		t.Errorf("README.md does not say that %s come with package endpoints (%v)", said, err)
	}
}
