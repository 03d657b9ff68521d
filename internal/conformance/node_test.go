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
