package conformance

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// nodeService installs the service of examples/node in a directory of the test's own and returns its command.
func nodeService(t *testing.T) []string {
	t.Helper()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Fatalf("%v: run scripts/deps.sh node, which says what to install where it cannot", err)
		}
	}
	dir := t.TempDir()
	for _, name := range []string{
		".npmrc", "package.json", "package-lock.json", "message.js", "tranche.js", "service.js",
	} {
		content, err := os.ReadFile(filepath.Join("..", "..", "examples", "node", name))
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
	return []string{"node", filepath.Join(dir, "service.js")}
}

// TestNodeServicePasses checks a service that was written from the protocol page, without our library.
func TestNodeServicePasses(t *testing.T) {
	t.Parallel()
	command := nodeService(t)
	t.Run("conformance endpoint", func(t *testing.T) {
		t.Parallel()
		expect(t, suite(t, Config{Endpoint: "node-conformance", Command: command}), nil, nil)
	})
	t.Run("any endpoint", func(t *testing.T) {
		t.Parallel()
		report := suite(t, Config{Endpoint: "node-interest", Command: command, Items: []json.RawMessage{
			[]byte(`{"id":"A","balance":"12.50"}`), []byte(`{"id":"B","balance":"-1"}`), []byte(`null`),
		}})
		expect(t, report, nil, needing(needContract))
	})
}
