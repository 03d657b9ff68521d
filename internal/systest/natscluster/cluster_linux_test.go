package natscluster

import (
	"path/filepath"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// One cluster serves all, one at a time: it takes seconds until three servers are one, and minutes of the machine
// to have more than one at a time.
func TestCluster(t *testing.T) {
	binary := testenv.Program(t, filepath.Join("..", "..", ".."))
	script := testenv.NodeService(t, filepath.Join("..", "..", "..", "examples", "node"))
	cluster := startServers(t)
	t.Run("keeps the pace", func(t *testing.T) { keepsThePace(t, cluster, binary, script) })
	t.Run("survives", func(t *testing.T) { faults(t, cluster, binary, script) })
}
