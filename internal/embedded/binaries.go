package embedded

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// minMajor is the oldest PostgreSQL that can count bits.
const minMajor = 14

// Install is a directory of PostgreSQL server programs.
type Install struct {
	Dir     string
	Version string // as the server says it, like "15.18 (Debian 15.18-0+deb12u1)"
	Major   int
}

func (i Install) program(name string) string { return filepath.Join(i.Dir, name) }

// FindInstalls returns the usable PostgreSQL installations, newest first. Packages' own directories come before PATH:
// what stands there may be a wrapper that expects a packaged cluster. None at all is [ErrNoBinaries].
func FindInstalls(ctx context.Context) ([]Install, error) {
	var found []Install
	for _, dir := range candidates() {
		known := func(in Install) bool { return in.Dir == dir }
		if slices.ContainsFunc(found, known) {
			continue
		}
		if in, ok := inspect(ctx, dir); ok && in.Major >= minMajor {
			found = append(found, in)
		}
	}
	if dir := os.Getenv(BinariesVariable); len(found) == 0 && dir != "" {
		return nil, fmt.Errorf("%s is %s, where no PostgreSQL of version %d or newer runs: %w", BinariesVariable, dir,
			minMajor, ErrNoBinaries)
	}
	if len(found) == 0 {
		return nil, ErrNoBinaries
	}
	slices.SortStableFunc(found, func(a, b Install) int { return cmp.Compare(b.Major, a.Major) })
	return found, nil
}

// BinariesVariable names the one directory of PostgreSQL's programs to use, instead of looking for some.
const BinariesVariable = "TRANCHE_POSTGRES_BIN"

// candidates lists the places where packages put the server, then the directories of PATH, each behind its links.
func candidates() []string {
	if dir := os.Getenv(BinariesVariable); dir != "" {
		return []string{dir}
	}
	var dirs []string
	for _, pattern := range []string{
		"/usr/lib/postgresql/*/bin", // Debian, Ubuntu
		"/usr/lib/postgresql*/bin",  // SUSE
		"/usr/pgsql-*/bin",          // packages of postgresql.org for Fedora and RHEL
		"/usr/libexec/postgresql*",  // Alpine
		"/opt/homebrew/opt/postgresql*/bin",
		"/usr/local/opt/postgresql*/bin", // Homebrew on Intel
		"/home/linuxbrew/.linuxbrew/opt/postgresql*/bin",
		"/Applications/Postgres.app/Contents/Versions/*/bin",
		"/opt/local/lib/postgresql*/bin", // MacPorts
		"/usr/local/pgsql/bin",           // built from source
	} {
		matches, _ := filepath.Glob(pattern) // the patterns are well formed
		dirs = append(dirs, matches...)
	}
	for _, dir := range filepath.SplitList(os.Getenv("PATH")) {
		path, err := filepath.EvalSymlinks(filepath.Join(dir, "initdb"))
		if err == nil && filepath.IsAbs(path) {
			dirs = append(dirs, filepath.Dir(path))
		}
	}
	return dirs
}

var versionLine = regexp.MustCompile(`^postgres \(PostgreSQL\) (([0-9]+).*)`)

// inspect looks whether dir holds programs that run here.
func inspect(ctx context.Context, dir string) (Install, bool) {
	in := Install{Dir: dir}
	if err := exec.CommandContext(ctx, in.program("initdb"), "--version").Run(); err != nil {
		return in, false
	}
	out, err := exec.CommandContext(ctx, in.program("postgres"), "--version").Output()
	match := versionLine.FindStringSubmatch(strings.TrimSpace(string(out)))
	if err != nil || match == nil {
		return in, false
	}
	in.Version = match[1]
	in.Major, err = strconv.Atoi(match[2])
	return in, err == nil
}
