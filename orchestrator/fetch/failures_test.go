package fetch_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// A call continues no longer than it is of use: when its run is cancelled, or all its items are reset, it ends.
func TestCallsEndWhenTheirItemsAreTakenBack(t *testing.T) {
	t.Parallel()
	begun, ended := make(chan string, 10), make(chan error, 10)
	b := setupLocal(t, map[string]fetch.Fetcher{"slow": fetch.Func(
		func(ctx context.Context, req *fetch.Request) ([]fetch.Slot, error) {
			begun <- req.Step
			<-ctx.Done()
			ended <- context.Cause(ctx)
			return nil, ctx.Err()
		})})
	req := local("slow")
	req.Steps[0].Chunk, req.Steps[0].Timeout = 10, 10*time.Minute
	run := b.Start(t, req, 10)
	<-begun
	testenv.Must(b.Node.Runs().Reset(t.Context(), redo.ResetRequest{Run: run, Actor: "test",
		Select: redo.Selection{All: true}}))(t)
	wait := func(what string) {
		t.Helper()
		select {
		case err := <-ended:
			if errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: the call ended with %v", what, err)
			}
		case <-time.After(nodetest.Stuck):
			t.Fatalf("%s: the call continues", what)
		}
	}
	wait("reset")
	<-begun // the same items, in another slice
	testenv.Must(b.Node.Runs().Cancel(t.Context(), control.Control{Run: run, Actor: "test"}))(t)
	wait("cancel")
	b.Check(t)
}
