package embedded

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestFindInstallsNewestFirst(t *testing.T) {
	t.Parallel()
	found, err := FindInstalls(t.Context())
	if err != nil {
		t.Fatalf("%v\nor let the makefile install it: make deps", err)
	}
	for i, in := range found {
		if in.Major < minMajor || in.Version == "" || !filepath.IsAbs(in.Dir) {
			t.Errorf("installation %+v", in)
		}
		if i > 0 && in.Major > found[i-1].Major {
			t.Errorf("%d stands behind %d", in.Major, found[i-1].Major)
		}
	}
}

func TestInspectTakesWorkingProgramsOnly(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		initdb, postgres string
		major            int
	}{
		"release":        {"exit 0", "echo 'postgres (PostgreSQL) 17.2'", 17},
		"beta":           {"exit 0", "echo 'postgres (PostgreSQL) 18beta1'", 18},
		"distribution":   {"exit 0", "echo 'postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)'", 15},
		"no initdb":      {"", "echo 'postgres (PostgreSQL) 17.2'", 0},
		"broken initdb":  {"exit 127", "echo 'postgres (PostgreSQL) 17.2'", 0},
		"something else": {"exit 0", "echo 'EnterpriseDB 9'", 0},
	} {
		dir := t.TempDir()
		for program, script := range map[string]string{"initdb": c.initdb, "postgres": c.postgres} {
			if script == "" {
				continue
			}
			syscall.ForkLock.RLock() // what is started meanwhile would have it open for a moment: then it cannot be run
			err := os.WriteFile(filepath.Join(dir, program), []byte("#!/bin/sh\n"+script+"\n"), 0o755)
			syscall.ForkLock.RUnlock()
			if err != nil {
				t.Fatal(err)
			}
		}
		in, ok := inspect(t.Context(), dir)
		if ok != (c.major != 0) || (ok && in.Major != c.major) {
			t.Errorf("%s: got %+v, %v", name, in, ok)
		}
	}
}

func TestPostgresRefusesAnotherMajorVersion(t *testing.T) {
	t.Parallel()
	dir := dataDir(t)
	pg := start(t, PostgresConfig{DataDir: dir})
	stop(t, pg)
	version := filepath.Join(pg.layout.cluster, "PG_VERSION")
	if err := os.WriteFile(version, []byte("9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := tryStart(t, PostgresConfig{DataDir: dir})
	var wrong *VersionError
	if !errors.As(err, &wrong) || wrong.Data != 9 {
		t.Fatalf("got %v, want a VersionError about 9", err)
	}
	mustSay(t, err, pg.layout.cluster, "PostgreSQL 9", pg.BinDir(), "pg_upgrade", "--data-dir")
}

func TestInstallForTakesTheMatchingVersion(t *testing.T) {
	t.Parallel()
	installs := []Install{{Dir: "/new", Major: 17}, {Dir: "/old", Major: 15}}
	if in, err := installFor(15, "dir", installs); err != nil || in.Dir != "/old" {
		t.Fatalf("got %+v, %v; want the old one", in, err)
	}
	_, err := installFor(16, "dir", installs)
	mustSay(t, err, "PostgreSQL 16", "17 (/new)", "15 (/old)")
}
