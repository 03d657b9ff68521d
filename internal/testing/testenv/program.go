package testenv

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// program is the built command, shared by the tests of a binary: linking takes seconds.
var program struct {
	once sync.Once
	dir  string
	err  error
}

// Program builds the command once and returns its path. The package's TestMain must call [Main].
func Program(t testing.TB, root string) string {
	t.Helper()
	program.once.Do(func() {
		program.dir, program.err = os.MkdirTemp("", "tranche-program-") //nolint:usetesting // it outlives the test
		if program.err != nil {
			return
		}
		if program.err = os.Chmod(program.dir, 0o755); program.err != nil { // for a test that runs it as another user
			return
		}
		cmd := exec.Command("go", "build", "-ldflags=-s -w", "-o", filepath.Join(program.dir, "tranche"), "./cmd/tranche")
		cmd.Dir, cmd.Env = root, append(os.Environ(), GoFlags("-buildvcs=false"))
		if out, err := cmd.CombinedOutput(); err != nil {
			program.err = fmt.Errorf("build the program: %w\n%s", err, out)
		}
	})
	if program.err != nil {
		t.Fatal(program.err)
	}
	return filepath.Join(program.dir, "tranche")
}

// GoFlags returns the environment's GOFLAGS plus more. Without its flags, go would recompile everything.
func GoFlags(more string) string { return "GOFLAGS=" + os.Getenv("GOFLAGS") + " " + more }

// PlainEnv returns the environment without settings for Tranche and NATS.
func PlainEnv() (env []string) {
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "TRANCHE_") && !strings.HasPrefix(v, "NATS_") {
			env = append(env, v)
		}
	}
	return env
}

// Log is a process's output. It is safe for concurrent use.
type Log struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// Accounts returns a CSV of n items with the keys C0, C1, ….
func Accounts(n int) string {
	var csv strings.Builder
	csv.WriteString("id\n")
	for i := range n {
		fmt.Fprintf(&csv, "C%d\n", i)
	}
	return csv.String()
}

// NodePackage is the package for services in TypeScript, as published.
type NodePackage struct {
	Sources string // a copy of endpoints/typescript, with its build tools
	Tarball string // of npm pack
	Project string // an empty project with the tarball installed
}

// NodeService copies the service.js of an example, in directory from, into a directory of the test with the package
// installed, and returns its path.
func NodeService(t testing.TB, from string) string {
	t.Helper()
	project := NodeProject(t, filepath.Join(from, "..", ".."))
	for _, name := range []string{"package.json", "service.js"} {
		copyFile(t, filepath.Join(project, name), filepath.Join(from, name))
	}
	return filepath.Join(project, "service.js")
}

// NodeProject returns a directory of the test with the package for services installed. root is the repository's.
func NodeProject(t testing.TB, root string) string {
	t.Helper()
	dir := t.TempDir()
	NoError(t, os.CopyFS(dir, os.DirFS(BuildNodePackage(t, root).Project)))
	return dir
}

// BuildNodePackage builds and packs endpoints/typescript below .tools, once per version of the sources. Without
// Node.js the test fails and names the remedy.
func BuildNodePackage(t testing.TB, root string) NodePackage {
	t.Helper()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v: run scripts/deps.sh node, which says what to install where it cannot", err)
		}
	}
	root = Must(filepath.Abs(root))(t)
	building.Lock() // another process may build as well: the first to rename wins
	defer building.Unlock()
	dir := nodePackage(t, root)
	tarballs, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	if err != nil || len(tarballs) != 1 {
		t.Fatalf("npm pack has left %q (%v) in %s; remove that directory", tarballs, err, dir)
	}
	return NodePackage{
		Sources: filepath.Join(dir, "package"), Tarball: tarballs[0], Project: filepath.Join(dir, "project"),
	}
}

// building serializes builds of the package within a process.
var building sync.Mutex

// nodePackage returns the directory of the built package, and builds it if needed.
func nodePackage(t testing.TB, root string) string {
	t.Helper()
	from := filepath.Join(root, "endpoints", "typescript")
	sources, sum := nodeSources(t, from)
	dir := filepath.Join(root, ".tools", "typescript-"+sum)
	if _, err := os.Stat(dir); err == nil {
		return dir
	}
	NoError(t, os.MkdirAll(filepath.Dir(dir), 0o755))
	scratch := Must(os.MkdirTemp(filepath.Dir(dir), "typescript-new-"))(t) //nolint:usetesting // beside dir, to be renamed
	defer func() { _ = os.RemoveAll(scratch) }()
	buildNodePackage(t, root, scratch, from, sources)
	if err := os.Rename(scratch, dir); err != nil {
		Must(os.Stat(dir))(t) // another process was faster
	}
	return dir
}

// nodeSources lists the package's source files, with a checksum.
func nodeSources(t testing.TB, from string) (names []string, sum string) {
	t.Helper()
	hash := sha256.New()
	NoError(t, fs.WalkDir(os.DirFS(from), ".", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (path == "node_modules" || path == "lib"):
			return fs.SkipDir
		case entry.IsDir():
			return nil
		}
		content, err := os.ReadFile(filepath.Join(from, path))
		names = append(names, path)
		_, _ = fmt.Fprintf(hash, "%s %d\n%s", path, len(content), content)
		return err
	}))
	return names, hex.EncodeToString(hash.Sum(nil))[:16]
}

func buildNodePackage(t testing.TB, root, dir, from string, sources []string) {
	t.Helper()
	sourcesDir, project := filepath.Join(dir, "package"), filepath.Join(dir, "project")
	for _, name := range sources {
		copyFile(t, filepath.Join(sourcesDir, name), filepath.Join(from, name))
	}
	copyFile(t, filepath.Join(sourcesDir, "LICENSE"), filepath.Join(root, "LICENSE"))
	NoError(t, os.MkdirAll(project, 0o755))
	empty := []byte(`{"name":"project","version":"1.0.0","private":true}`)
	NoError(t, os.WriteFile(filepath.Join(project, "package.json"), empty, 0o600))
	for _, step := range []struct {
		dir, shell string
	}{
		{sourcesDir, "npm ci --prefer-offline --fetch-retries=5 --no-audit --no-fund"},
		{sourcesDir, "npm pack --pack-destination .."},
		{project, "npm install --prefer-offline --fetch-retries=5 --no-audit --no-fund ../*.tgz"},
	} {
		run := exec.CommandContext(t.Context(), "sh", "-c", step.shell)
		run.Dir = step.dir
		if said, err := run.CombinedOutput(); err != nil {
			t.Fatalf("%s, which needs npm's registry or a warm cache: %v\n%s", step.shell, err, said)
		}
	}
}

func copyFile(t testing.TB, to, from string) {
	t.Helper()
	content := Must(os.ReadFile(from))(t)
	NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
	NoError(t, os.WriteFile(to, content, 0o600))
}
