package testenv

import (
	"context"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/embedded"
)

// clusterTimeout limits the start of a cluster, until all servers know its leader.
const clusterTimeout = time.Minute

// NATSCluster runs three servers in this process until the test ends, for streams with three replicas.
func NATSCluster(t testing.TB) *embedded.NATSCluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), clusterTimeout)
	defer cancel()
	cluster := Must(embedded.StartNATSCluster(ctx, t.TempDir()))(t)
	t.Cleanup(cluster.Stop)
	return cluster
}
