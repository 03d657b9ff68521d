package testenv

import (
	"context"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/embedded"
)

// clusterTimeout bounds the start of a cluster: the election of its leader, and that all know of it.
const clusterTimeout = time.Minute

// NATSCluster runs three servers in this process until the test ends, so that streams may have three replicas.
func NATSCluster(t testing.TB) *embedded.NATSCluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), clusterTimeout)
	defer cancel()
	cluster, err := embedded.StartNATSCluster(ctx, t.TempDir())
	if err != nil {
		t.Fatalf("test environment: %v", err)
	}
	t.Cleanup(cluster.Stop)
	return cluster
}
