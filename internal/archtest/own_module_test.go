package archtest_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

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
		said, err := run.Output()
		if err != nil {
			t.Fatalf("%s: %v\n%s", run, err, stderrOf(err))
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

func stderrOf(err error) string {
	if exit, ok := err.(*exec.ExitError); ok { //nolint:errorlint // as exec returns it
		return string(exit.Stderr)
	}
	return ""
}
