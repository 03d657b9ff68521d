package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// NodeService installs a service in Node.js, with what its package-lock.json names, in a directory of the test's own,
// and returns the path of its service.js. from is the directory that it stands in. Without Node.js the test fails and
// says what to do.
func NodeService(t testing.TB, from string) string {
	t.Helper()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v: run scripts/deps.sh node, which says what to install where it cannot", err)
		}
	}
	dir := t.TempDir()
	for _, name := range []string{
		".npmrc", "package.json", "package-lock.json", "message.js", "pull.js", "tranche.js", "service.js",
	} {
		content, err := os.ReadFile(filepath.Join(from, name))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	install := exec.CommandContext(t.Context(), "npm", "ci", "--prefer-offline")
	install.Dir = dir
	if said, err := install.CombinedOutput(); err != nil {
		t.Fatalf("npm ci, which needs its registry or a warm cache: %v\n%s", err, said)
	}
	return filepath.Join(dir, "service.js")
}
