package conformance

import (
	"encoding/json"
	"path/filepath"
	"testing"

	"github.com/tranchehq/tranche/internal/testenv"
)

// TestNodeServicePasses checks a service that was written from the protocol page, without our library.
func TestNodeServicePasses(t *testing.T) {
	t.Parallel()
	command := []string{"node", testenv.NodeService(t, filepath.Join("..", "..", "examples", "node"))}
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

// The smallest service of docs/protocol.md leaves out what it says, and does all that it must.
func TestTheSmallestServiceDoesWhatItMust(t *testing.T) {
	t.Parallel()
	command := []string{"python3", "-u", filepath.Join("..", "..", "examples", "python", "service.py")}
	report := suite(t, Config{Endpoint: "python-interest", Command: command, Items: []json.RawMessage{
		[]byte(`{"balance":"12.50"}`), []byte(`{"balance":-1}`), []byte(`null`),
	}})
	for _, r := range report.Results {
		if r.Outcome == Failed && (r.Level == Must || r.Notice == "") {
			t.Errorf("%s: expected %s, got %s", r.Check, r.Expected, r.Got)
		}
	}
	if report.Wanting(Must) != 0 || report.Wanting(Should) == 0 || report.Count(Passed) < 15 {
		t.Errorf("%d must, %d should, %d passed", report.Wanting(Must), report.Wanting(Should), report.Count(Passed))
	}
}

func TestEachCheckHasALevel(t *testing.T) {
	t.Parallel()
	for _, c := range Checks() {
		if c.Level == "" || c.Notice == "" {
			t.Errorf("levels.go does not have %s", c.Name)
		}
	}
	if n := len(demands()); n != len(Checks()) {
		t.Errorf("levels.go has %d checks of %d", n, len(Checks()))
	}
}
