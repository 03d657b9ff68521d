package orchestrator_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
)

// A node whose connection was closed permanently would keep the lease and do nothing.
func TestANodeWhoseConnectionIsClosedEnds(t *testing.T) {
	t.Parallel()
	b := &bundle{nodetest.ServersOnly(t)}
	nc := testenv.Conn(t, b.NS)
	node := testenv.Must(orchestrator.New(b.Store, nc, nodetest.Config(t)))(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- node.Run(ctx) }()
	<-node.Ready()
	nc.Close()
	if err := <-ended; !errors.Is(err, orchestrator.ErrConnectionClosed) || ctx.Err() != nil {
		t.Errorf("it ended with %v; want ErrConnectionClosed", err)
	}
	if open := b.Number(t, `SELECT count(*) FROM node_session WHERE ended_at IS NULL`); open != 0 {
		t.Errorf("%d sessions are open", open)
	}
	again := testenv.Must(orchestrator.New(b.Store, nc, nodetest.Config(t)))(t)
	if err := again.Run(ctx); !errors.Is(err, orchestrator.ErrConnectionClosed) {
		t.Errorf("one on a closed connection ended with %v; want ErrConnectionClosed", err)
	}
}
