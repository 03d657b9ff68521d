package orchestrator_test

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/nodetest"
)

func TestParamsOfARunReachTheHandler(t *testing.T) {
	t.Parallel()
	b := setup(t)
	var odd atomic.Int64
	b.Serve(t, "statement", func(ctx context.Context, chunk *nodetest.Chunk) error {
		if chunk.Param("year") != "2026" || chunk.Param("title") != `<é "quoted">` || len(chunk.Params()) != 2 {
			odd.Add(1)
		}
		return nodetest.Echo(ctx, chunk)
	})
	req := nodetest.Request("statement")
	req.Params = map[string]string{"year": "2026", "title": `<é "quoted">`}
	run := b.Start(t, req, 1200)
	b.Want(t, run, 1, 1200, 0)
	if n := odd.Load(); n != 0 {
		t.Errorf("%d chunks came without the parameters", n)
	}
	b.Check(t)
}
