package fetch_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// What a function depends on is down for a while: its breaker opens, no item loses an attempt, and the run goes on when
// it is up again. Then it says that it has too much to do, which is no one's fault either, and one chunk fails for one
// item in it, which is found by halving.
func TestBreakerThrottlingAndBisection(t *testing.T) {
	t.Parallel()
	var down, busy atomic.Bool
	var refused atomic.Int64
	down.Store(true)
	f := fetch.Func(func(ctx context.Context, req *fetch.Request) ([]fetch.Slot, error) {
		switch {
		case down.Load():
			return nil, errors.New("connection refused")
		case busy.Load() && refused.Add(1) <= 20:
			return nil, endpoints.Retry("too_many_requests", "later")
		}
		var slots []fetch.Slot
		for n := range req.Items {
			if req.Items[n].Key == "C42" {
				return nil, endpoints.Fail("bad_document", "it cannot be read")
			}
			part, err := compose(ctx, &req.Items[n])
			if err != nil {
				return nil, err
			}
			slots = append(slots, fetch.Slot{Ordinal: req.Items[n].Ordinal, Data: part.Data})
		}
		return slots, nil
	})
	b := setupLocal(t, map[string]fetch.Fetcher{"fragile": f})
	req := local("fragile")
	req.Steps[0].MaxAttempts = 2
	run := b.Start(t, req, 3000)
	b.Await(t, "the breaker is open",
		`SELECT EXISTS (SELECT FROM endpoint_pace WHERE endpoint = 'local:fragile' AND breaker = 'open')`)
	busy.Store(true)
	down.Store(false)
	b.Want(t, run, 1, 2999, 1)
	if got := b.ErrorOf(t, run, "C42"); got != "bad_document: it cannot be read" {
		t.Errorf("C42 failed with %q", got)
	}
	if n := refused.Load(); n <= 20 {
		t.Errorf("it refused %d times", n)
	}
	b.Check(t)
}

// A call goes on no longer than it is of use: when its run is cancelled, or all its items are reset, it ends.
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
	_, err := b.Node.Runs().Reset(t.Context(), redo.ResetRequest{Run: run, Actor: "test",
		Select: redo.Selection{All: true}})
	testenv.NoError(t, err)
	wait := func(what string) {
		t.Helper()
		select {
		case err := <-ended:
			if errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: the call ended with %v", what, err)
			}
		case <-time.After(nodetest.Stuck):
			t.Fatalf("%s: the call goes on", what)
		}
	}
	wait("reset")
	<-begun // the same items, in another slice
	testenv.Must(b.Node.Runs().Cancel(t.Context(), control.Control{Run: run, Actor: "test"}))(t)
	wait("cancel")
	b.Check(t)
}
