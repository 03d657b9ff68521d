package systest

import (
	"crypto/sha256"
	"debug/elf"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

const goreleaser = "github.com/goreleaser/goreleaser/v2@v2.15.1"

// release makes what a release would have for this kind of machine, and returns where it is.
func release(t *testing.T) string {
	t.Helper()
	cmd := command(t.Context(), tool(t, goreleaser), "release", "--snapshot", "--clean")
	cmd.Env = append(append(os.Environ(), "RELEASE_ONE=1"), version...)
	output(t, cmd)
	return absolute(t, "dist")
}

// What a release has is whole, and each part of it is used.
func TestReleaseArtifacts(t *testing.T) {
	dist := release(t)
	for name, test := range map[string]func(*testing.T, string){
		"checksums": checkSums, "archive": checkArchive, "sbom": checkSBOM, "package": checkPackage,
	} {
		t.Run(name, func(t *testing.T) { test(t, dist) })
	}
}

func one(t *testing.T, dir, pattern string) string {
	t.Helper()
	found := testenv.Must(filepath.Glob(filepath.Join(dir, pattern)))(t)
	testenv.MustSame(t, len(found), 1, "%s in %s", pattern, dir)
	return found[0]
}

func checkSums(t *testing.T, dist string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sha256sum", "--check", "--strict", "checksums.txt")
	cmd.Dir = dist
	if out := output(t, cmd); strings.Count(out, ": OK") < 3 {
		t.Errorf("checksums.txt names too little:\n%s", out)
	}
}

// The archive has a program that says its version, completions that a shell takes, and man pages.
func checkArchive(t *testing.T, dist string) {
	t.Helper()
	dir := t.TempDir()
	output(t, command(t.Context(), "tar", "-xzf", one(t, dist, "tranche_*_linux_amd64.tar.gz"), "-C", dir))
	said := output(t, command(t.Context(), filepath.Join(dir, "tranche"), "version", "--json"))
	var is struct{ Version, Commit, Date string }
	if err := json.Unmarshal([]byte(said), &is); err != nil || !strings.HasPrefix(is.Version, "v") ||
		len(is.Commit) != 40 || is.Date == "" {
		t.Errorf("the program says of itself: %s", said)
	}
	for _, name := range []string{"LICENSE", "README.md", "CHANGELOG.md", "completions/_tranche",
		"completions/tranche.fish"} {
		if read(t, filepath.Join(dir, name)) == "" {
			t.Errorf("%s is empty", name)
		}
	}
	script := "source " + filepath.Join(dir, "completions", "tranche.bash") + " && complete -p tranche"
	testenv.Has(t, output(t, command(t.Context(), "bash", "-c", script)), "tranche", "bash completes nothing")
	for page, want := range map[string]string{"tranche.1": "tranche-run(1)", "tranche-serve.1": "--stream-replicas"} {
		cmd := command(t.Context(), installed(t, "man"), "--local-file", "--warnings", filepath.Join(dir, "man", page))
		cmd.Env = append(os.Environ(), "MANWIDTH=200", "MAN_KEEP_FORMATTING=", "LC_ALL=C.UTF-8")
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), want) || strings.Contains(string(out), "warning:") {
			t.Errorf("man %s: %v, without %s:\n%.2000s", page, err, want, out)
		}
	}
}

// The bill of materials is of the program: it has what go.mod has, with hashes and licenses. scripts/sbom.sh fails
// without one of these.
func checkSBOM(t *testing.T, dist string) {
	t.Helper()
	type component struct {
		Name, Version string
		Hashes        []struct{ Alg, Content string }
		Licenses      []struct{ License struct{ ID string } }
	}
	var bill struct{ Components []component }
	testenv.NoError(t, json.Unmarshal([]byte(read(t, one(t, dist, "*linux_amd64*.cdx.json"))), &bill))
	at := slices.IndexFunc(bill.Components, func(c component) bool { return c.Name == "github.com/nats-io/nats.go" })
	testenv.MustSame(t, at >= 0, true, "the bill of materials has nats.go")
	c := bill.Components[at]
	if c.Version == "" || len(c.Hashes) == 0 || len(c.Hashes[0].Content) != 64 || c.Hashes[0].Alg != "SHA-256" ||
		len(c.Licenses) == 0 || c.Licenses[0].License.ID != "Apache-2.0" {
		t.Errorf("nats.go in the bill of materials: %+v", c)
	}
}

// mostExposed is what systemd may say of the unit, of 10.
const mostExposed = 2.0

// dpkg installs the package, makes its user, keeps its secrets secret, and takes all of it away again but the
// configuration, which goes by --purge. systemd takes the unit, and finds it well locked up.
func checkPackage(t *testing.T, dist string) {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"var/lib/dpkg/info", "var/lib/dpkg/updates", "etc", "usr/lib/systemd", "lib/systemd"} {
		testenv.NoError(t, os.MkdirAll(filepath.Join(dir, name), 0o755))
	}
	for name, text := range map[string]string{"var/lib/dpkg/status": "", "etc/passwd": "", "etc/group": ""} {
		testenv.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
	}
	dpkg := func(args ...string) {
		t.Helper()
		// The scripts run outside of the root, which has no shell, and what it depends on is not there.
		output(t, command(t.Context(), "dpkg", append([]string{"--root=" + dir, "--force-script-chrootless",
			"--force-depends"}, args...)...))
	}
	dpkg("--install", one(t, dist, "tranche_*_amd64.deb"))
	testenv.Has(t, read(t, filepath.Join(dir, "etc/passwd")), "tranche:", "there is no user")
	info := testenv.Must(os.Stat(filepath.Join(dir, "etc/tranche/tranche.env")))(t)
	testenv.Same(t, info.Mode().Perm(), 0o600, "the file for secrets: %v", info)
	for _, name := range []string{"etc/tranche/tranche.yaml", "usr/share/man/man1/tranche.1.gz",
		"usr/share/bash-completion/completions/tranche", "usr/share/tranche/prometheus-rules.yml"} {
		testenv.Must(os.Stat(filepath.Join(dir, name)))(t)
	}
	output(t, command(t.Context(), filepath.Join(dir, "usr/bin/tranche"), "--version"))
	checkUnit(t, dir)
	dpkg("--remove", "tranche")
	_, err := os.Stat(filepath.Join(dir, "usr/bin/tranche"))
	testenv.Fails(t, err, "the program stays behind")
	testenv.Must(os.Stat(filepath.Join(dir, "etc/tranche/tranche.env")))(t)
	dpkg("--purge", "tranche")
	if left, err := filepath.Glob(filepath.Join(dir, "etc/tranche/*")); len(left) > 0 || err != nil {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// checkUnit asks systemd about the unit in a root, beside the machine's own units, which it leads to.
func checkUnit(t *testing.T, dir string) {
	t.Helper()
	analyze := installed(t, "systemd-analyze")
	output(t, command(t.Context(), "cp", "-rn", "/lib/systemd/system", filepath.Join(dir, "lib/systemd/")))
	verify := command(t.Context(), analyze, "--root="+dir, "--man=no", "verify", "tranche.service")
	if out, err := verify.CombinedOutput(); err != nil || strings.Contains(string(out), "tranche.service:") {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	said := output(t, command(t.Context(), analyze, "--root="+dir, "--offline=true", "--no-pager", "security",
		"tranche.service"))
	found := regexp.MustCompile(`exposure level for tranche.service: ([0-9.]+)`).FindStringSubmatch(said)
	if found == nil {
		t.Fatalf("systemd-analyze security says no level:\n%s", said)
	}
	if level, err := strconv.ParseFloat(found[1], 64); err != nil || level >= mostExposed {
		t.Errorf("the unit's exposure is %s; it must be under %v", found[1], mostExposed)
	}
}

// version is what the tests build.
var version = []string{"VERSION=v0.1.0-test", "COMMIT=0123456789abcdef0123456789abcdef01234567",
	"DATE=2026-01-02T03:04:05Z"}

// The same source makes the same bytes, wherever it stands. The program is static, and says what it is.
func TestTwoCheckoutsMakeTheSameBytes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := build(t, absolute(t, "."), filepath.Join(dir, "first"))
	second := build(t, checkout(t), filepath.Join(dir, "elsewhere", "second"))
	testenv.Same(t, sha256.Sum256([]byte(read(t, first))), sha256.Sum256([]byte(read(t, second))), "two checkouts")
	if info, err := os.Stat(first); err != nil || info.Size() > 80<<20 {
		t.Errorf("the program has %d bytes (%v)", info.Size(), err)
	}
	program := testenv.Must(elf.Open(first))(t)
	defer func() { _ = program.Close() }()
	if needs, err := program.ImportedLibraries(); len(needs) > 0 || err != nil {
		t.Errorf("it needs %v (%v)", needs, err)
	}
	const want = "tranche v0.1.0-test (0123456789ab, 2026-01-02T03:04:05Z)\n"
	testenv.Same(t, output(t, command(t.Context(), first, "version")), want, "it says")
}

func build(t *testing.T, from, out string) string {
	t.Helper()
	cmd := command(t.Context(), filepath.Join(from, "scripts", "build.sh"), out)
	cmd.Dir = from
	cmd.Env = append(os.Environ(), version...)
	output(t, cmd)
	return out
}

// checkout is the same source at another path.
func checkout(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "a", "longer", "path")
	files := output(t, command(t.Context(), "git", "ls-files", "-z", "--", "*.go", "go.mod", "go.sum", "scripts",
		"internal", "migrations", "examples", "docs/openapi.json"))
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
