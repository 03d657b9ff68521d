package fetch_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	nodefetch "github.com/tranchehq/tranche/orchestrator/fetch"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/control"
	"github.com/tranchehq/tranche/workqueue/redo"
	"github.com/tranchehq/tranche/workqueue/start"
)

// local is a request for a run of one step that a function of the node does.
func local(function string) start.LoadRequest {
	req := nodetest.Small(workqueue.TargetKey(workqueue.KindLocal, function))
	req.Plan, req.Steps[0].Name, req.Steps[0].Kind = function, function, workqueue.KindLocal
	return req
}

// setupLocal is setup with a node that has functions.
func setupLocal(t *testing.T, locals map[string]fetch.Fetcher) *bundle {
	t.Helper()
	b := &bundle{nodetest.ServersOnly(t)}
	cfg := nodetest.Config(t)
	cfg.Locals = locals
	b.Node = b.Join(t, b.Store, b.NC, cfg).Node
	return b
}

func compose(_ context.Context, item *fetch.Item) (fetch.Part, error) {
	return fetch.JSON(map[string]string{"of": item.Key})
}

// A chunk with a panic and a lie in it costs those items only.
func TestFunctionsThatMisbehave(t *testing.T) {
	t.Parallel()
	b := setupLocal(t, map[string]fetch.Fetcher{
		"each": fetch.Each(func(ctx context.Context, item *fetch.Item) (fetch.Part, error) {
			switch item.Key {
			case "C7":
				panic("out of paper")
			case "C250":
				return fetch.Part{Data: []byte("no JSON")}, nil
			}
			return compose(ctx, item)
		}),
		"liar": fetch.Func(func(_ context.Context, req *fetch.Request) ([]fetch.Slot, error) {
			var slots []fetch.Slot
			for _, item := range req.Items {
				slot := fetch.Slot{Ordinal: item.Ordinal, Data: []byte("1")}
				slots = append(slots, slot, slot, fetch.Slot{Ordinal: item.Ordinal + 10_000, Data: []byte("2")},
					fetch.Slot{Ordinal: -3})
				if item.Key == "C8" {
					slots = slots[:len(slots)-4] // it leaves one out, and panics when it is alone
				}
				if len(req.Items) == 1 {
					panic("alone")
				}
			}
			return slots, nil
		}),
	})
	each := b.Start(t, local("each"), 400)
	liar := b.Start(t, local("liar"), 400)
	b.Want(t, each, 1, 398, 2)
	b.Want(t, liar, 1, 399, 1)
	for key, code := range map[string]string{"C7": wire.CodePanic, "C250": wire.CodeBadResult} {
		if got := b.ErrorOf(t, each, key); !strings.HasPrefix(got, code+": ") {
			t.Errorf("%s failed with %q, want %s", key, got, code)
		}
	}
	if got := b.ErrorOf(t, liar, "C8"); !strings.HasPrefix(got, wire.CodePanic) {
		t.Errorf("C8 failed with %q", got)
	}
	if n := b.Node.Stats().OddSlots; n < 1000 {
		t.Errorf("%d odd slots", n)
	}
	b.Check(t)
}

// sources makes fetchers, unless they are missing.
type sources struct {
	missing atomic.Bool
	rests   atomic.Int64 // questions that are answered with a rest
	asked   atomic.Int64
}

func (s *sources) Fetcher(config []byte) (fetch.Fetcher, error) {
	s.asked.Add(1)
	if s.missing.Load() {
		return nil, errors.New("there is no source ledger")
	}
	each := fetch.Each(func(_ context.Context, item *fetch.Item) (fetch.Part, error) {
		return fetch.JSON(map[string]string{"of": item.Key, "config": string(config)})
	})
	return fetch.Func(func(ctx context.Context, req *fetch.Request) ([]fetch.Slot, error) {
		req.Worked(time.Second)
		req.Worked(2 * time.Second)
		return each.Fetch(ctx, req)
	}), nil
}

func (s *sources) RestsUntil(string) time.Time {
	if s.rests.Add(-1) >= 0 {
		return time.Now().Add(time.Hour)
	}
	return time.Time{}
}

// A node that cannot do the work of a step gives it back, says why, and leaves it to one that can.
func TestNodeThatLacksASource(t *testing.T) {
	t.Parallel()
	b := setupLocal(t, nil) // has no fetchers at all
	lacks, has := &sources{}, &sources{}
	lacks.missing.Store(true)
	has.rests.Store(3)
	with := func(s *sources) orchestrator.Config {
		cfg := nodetest.Config(t)
		cfg.Fetchers = map[workqueue.Kind]nodefetch.Fetchers{workqueue.KindSQL: s}
		return cfg
	}
	const rest = 5 * time.Second // for which the node leaves the source alone
	begun := time.Now()
	first := b.Join(t, b.Store, testenv.Conn(t, b.NS), with(lacks))
	req := local("ledger")
	req.Steps[0].Kind, req.Steps[0].Endpoint = workqueue.KindSQL, "sql:ledger"
	req.Steps[0].Config = []byte(`{"concurrency": 2}`)
	run := b.Start(t, req, 1000)
	b.Await(t, "the slice is given back", `SELECT EXISTS (SELECT FROM work_slice WHERE state = 'scheduled'
		AND error_code = 'postponed' AND error_message LIKE '%there is no source ledger')`)
	b.Join(t, b.Store, testenv.Conn(t, b.NS), with(has))
	testenv.Advance(t, b.Pool, rest) // it is due
	b.Want(t, run, 1, 1000, 0)
	testenv.Same(t, b.Number(t, `SELECT count(*) FROM work_slice WHERE state = 'recorded' AND worked IS DISTINCT FROM 3`),
		0, "slices without how long the source took for them")
	most := 4 * (1 + int64(time.Since(begun)/rest))
	if n := lacks.asked.Load(); n > most || first.Stats().Postponed == 0 {
		t.Errorf("the node that lacks the source was asked %d times; want at most %d", n, most)
	}
	if has.rests.Load() >= 0 {
		t.Error("the rest was not requested")
	}
	b.Check(t)
}

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

func TestMain(m *testing.M) { testenv.Main(m) }

// bundle is a node, a server and a database for one test.
type bundle struct{ *nodetest.Bundle }

func setup(t *testing.T) *bundle {
	t.Helper()
	return &bundle{nodetest.Setup(t)}
}
