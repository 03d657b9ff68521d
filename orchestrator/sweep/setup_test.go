package sweep_test

import (
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// bundle is a node, a server and a database for one test.
type bundle struct{ *nodetest.Bundle }

func setup(t *testing.T) *bundle {
	t.Helper()
	return &bundle{nodetest.Setup(t)}
}

// setupTimed is setup of a node whose session and lease outlive what a test makes pass.
func setupTimed(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{nodetest.ServersOnly(t)}
	b.Node = b.StartNodeWith(t, orchestrator.Config{SessionTTL: time.Hour, LeaseTTL: time.Hour})
	return b
}

// pass advances the clock, and waits until the leader has seen to each request that is late by then.
func (b *bundle) pass(t *testing.T, by time.Duration) {
	t.Helper()
	testenv.Advance(t, b.Pool, by)
	nodetest.Until(t, "no request is late", func() bool {
		b.Node.WakeLeaderTask("sweep")
		return b.Number(t, `SELECT count(*) FROM work_slice WHERE state IN ('claimed', 'sent')
			AND deadline <= tranche_now()`) == 0
	})
}
