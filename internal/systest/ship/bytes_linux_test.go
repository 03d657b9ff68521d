package ship

import (
	"crypto/sha256"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// version is what the tests build.
var version = []string{"VERSION=v0.1.0-test", "COMMIT=0123456789abcdef0123456789abcdef01234567",
	"DATE=2026-01-02T03:04:05Z"}

// The same source makes the same bytes, wherever it stands. The program is static, and says what it is.
func TestTwoCheckoutsMakeTheSameBytes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := build(t, absolute(t, "."), filepath.Join(dir, "first"))
	second := build(t, checkout(t), filepath.Join(dir, "elsewhere", "second"))
	if a, b := digest(t, first), digest(t, second); a != b {
		t.Errorf("two checkouts make %s and %s", a, b)
	}
	if info, err := os.Stat(first); err != nil || info.Size() > 80<<20 {
		t.Errorf("the program has %d bytes (%v)", info.Size(), err)
	}
	program := testenv.Must(elf.Open(first))(t)
	defer func() { _ = program.Close() }()
	if needs, err := program.ImportedLibraries(); len(needs) > 0 || err != nil {
		t.Errorf("it needs %v (%v)", needs, err)
	}
	const want = "tranche v0.1.0-test (0123456789ab, 2026-01-02T03:04:05Z)\n"
	if got := run(t, command(t.Context(), first, "version")); got != want {
		t.Errorf("it says %q; want %q", got, want)
	}
}

// build builds the program of a checkout.
func build(t *testing.T, from, out string) string {
	t.Helper()
	cmd := command(t.Context(), filepath.Join(from, "scripts", "build.sh"), out)
	cmd.Dir = from
	cmd.Env = append(os.Environ(), version...)
	run(t, cmd)
	return out
}

// checkout is the same source at another path.
func checkout(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "a", "longer", "path")
	files := run(t, command(t.Context(), "git", "ls-files", "-z", "--", "*.go", "go.mod", "go.sum", "scripts", "internal",
		"migrations", "examples", "docs/openapi.json"))
	for name := range strings.SplitSeq(strings.TrimSuffix(files, "\x00"), "\x00") {
		to := filepath.Join(dir, name)
		info, err := os.Stat(filepath.Join(root, name))
		if err == nil {
			err = os.MkdirAll(filepath.Dir(to), 0o755)
		}
		if err == nil {
			err = os.WriteFile(to, []byte(read(t, filepath.Join(root, name))), info.Mode().Perm())
		}
		testenv.NoError(t, err)
	}
	return dir
}

func digest(t *testing.T, name string) string {
	t.Helper()
	return fmt.Sprintf("%x", sha256.Sum256([]byte(read(t, name))))
}
