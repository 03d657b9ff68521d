package orchestrator_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/internal/fault"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/orchestrator"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/export"
	"github.com/tranchehq/tranche/workqueue/start"
)

const crashChunk = 20

// step is a step of a run in which a node crashes. Its deadlines lie beyond the test: what comes again comes for a
// better reason.
func step(name string, kind workqueue.Kind, needs ...int) workqueue.StepSpec {
	return workqueue.StepSpec{Name: name, Kind: kind, Endpoint: workqueue.TargetKey(kind, "statement"), Needs: needs,
		Inputs: needs, StepSettings: workqueue.StepSettings{Chunk: crashChunk, InFlight: 8, MaxAttempts: 3,
			Timeout: 10 * time.Minute, RetryBackoff: 10 * time.Millisecond}}
}

// ask, work and request are runs of one step; gather asks for two parts of each item, over the stream and directly,
// composes those, and begins with its last step when all is composed.
func ask() []workqueue.StepSpec  { return []workqueue.StepSpec{step("ask", workqueue.KindEndpoint)} }
func work() []workqueue.StepSpec { return []workqueue.StepSpec{step("work", workqueue.KindLocal)} }
func request() []workqueue.StepSpec {
	return []workqueue.StepSpec{step("request", workqueue.KindDirect)}
}

func gather() []workqueue.StepSpec {
	last := step("index", workqueue.KindLocal, 2)
	last.Barrier = true
	return []workqueue.StepSpec{step("accounts", workqueue.KindEndpoint), step("branches", workqueue.KindDirect),
		step("compose", workqueue.KindLocal, 0, 1), last}
}

// statements is the function of the nodes, which notes what it is called with. What a node that has crashed would do
// did not happen.
func statements(l *nodetest.Ledger, node *nodetest.Doomed) map[string]fetch.Fetcher {
	return map[string]fetch.Fetcher{"statement": fetch.Func(
		func(ctx context.Context, req *fetch.Request) ([]fetch.Slot, error) {
			if node != nil && node.Dead() {
				return nil, io.ErrUnexpectedEOF
			}
			slots := make([]fetch.Slot, len(req.Items))
			of := wire.Meta{Run: req.Run, Slice: req.Slice, Generation: req.Generation}
			for n, item := range req.Items {
				if err := l.Take(ctx, of, item.Ordinal); err != nil {
					return nil, err
				}
				if want := map[string]int{"compose": 2, "index": 1}[req.Step]; len(item.Parts) != want {
					return nil, fmt.Errorf("%s has %d parts; want %d", item.Key, len(item.Parts), want)
				}
				for name := range item.Parts {
					var part nodetest.Statement
					if _, err := item.DecodePart(name, &part); err != nil || part.Of != item.Key {
						return nil, fmt.Errorf("part %s of %s is of %q: %w", name, item.Key, part.Of, err)
					}
				}
				data, err := json.Marshal(nodetest.Statement{Of: item.Key})
				if err != nil {
					return nil, err
				}
				slots[n] = fetch.Slot{Ordinal: item.Ordinal, Data: data}
			}
			return slots, nil
		})}
}

// load makes a run without the help of a node.
func (b *bundle) load(t *testing.T, items int, steps ...workqueue.StepSpec) workqueue.RunID {
	t.Helper()
	loaded := testenv.Must(start.New(b.Store).Load(t.Context(), start.LoadRequest{Plan: "statement", CreatedBy: "test",
		Steps: steps}, nodetest.Items(items)))(t)
	return loaded.Run
}

// outcomes is how many outcomes of items a run has.
func (b *bundle) outcomes(t *testing.T, run workqueue.RunID) int {
	t.Helper()
	return b.Number(t, `SELECT coalesce(sum(bit_count(done | failed)), 0) FROM work_block WHERE run_id = $1`, run)
}

// A node crashes at each moment that matters, and another comes after it: nothing is lost, nothing is there twice, no
// item is to blame, and only what was not recorded is redone.
func TestANodeCrashesAnywhere(t *testing.T) {
	t.Parallel()
	type moment struct {
		point string
		pass  int
		again bool // what it held comes back with its session
	}
	for of, tc := range map[string]struct {
		steps   func() []workqueue.StepSpec
		moments []moment
	}{
		"asking": {ask, []moment{
			{fault.ClaimBefore, 3, false},
			{fault.ClaimCommitted, 3, true},
			{fault.PublishAcked, 1, false}, // JetStream has it: its reply may be there before the session is swept
			{fault.RecordBefore, 3, false}, // what it had sent stays so; JetStream delivers the replies again
			{fault.RecordCommitted, 3, false},
			{fault.ReplyAcked, 3, false},
		}},
		"working":    {work, []moment{{fault.FetchBefore, 3, true}, {fault.FetchDone, 3, true}}},
		"requesting": {request, []moment{{fault.RecordBefore, 3, true}}},
		"gathering":  {gather, []moment{{fault.FetchDone, 19, true}}}, // behind the barrier
	} {
		for _, m := range tc.moments {
			t.Run(of+" "+m.point, func(t *testing.T) {
				t.Parallel()
				const items = 300
				b, l := bare(t), nodetest.NewLedger(0)
				b.Serve(t, "statement", l.Handle)
				steps := tc.steps()
				run := b.load(t, items, steps...)
				first := b.Doom(t)
				first.Start(t, m.point, m.pass, orchestrator.Config{Locals: statements(l, first)})
				first.Await(t, b.Bundle)
				if b.outcomes(t, run) == items*len(steps) {
					t.Fatal("the run was complete before the crash")
				}
				b.StartNodeWith(t, orchestrator.Config{LocalWorkers: 4, Locals: statements(l, nil)})
				b.Want(t, run, 1, items, 0)
				b.WantRight(t, run, items*len(steps))
				testenv.Same(t, b.Number(t, `SELECT count(*) FROM run_event WHERE kind = 'completed'`), 1,
					"times the completion was reported")
				b.Check(t)
				again := b.Number(t, `SELECT count(*) FROM work_slice WHERE cause = 'session'`)
				extra := l.Extra(items * len(steps))
				if m.again && again == 0 {
					t.Error("nothing of the dead node's came again")
				}
				if extra < 0 || extra > again*crashChunk {
					t.Errorf("%d extra executions for %d slices that came again", extra, again)
				}
				testenv.Same(t, b.Number(t, `SELECT count(*) FROM work_slice
					WHERE cause NOT IN ('ready', 'session') OR failures > 0`), 0, "slices were made for another cause")
			})
		}
	}
}

// A node crashes between the commit that completes a run and the mark that this was told. Another one tells it, under
// the same id, and JetStream keeps one of them.
func TestACompletionIsToldAfterACrash(t *testing.T) {
	t.Parallel()
	for point, times := range map[string]int{
		fault.RecordCommitted: 1,
		fault.EventPublished:  2, // whoever listens over core NATS hears it again
	} {
		t.Run(point, func(t *testing.T) {
			t.Parallel()
			b := bare(t)
			told, err := b.NC.SubscribeSync(wire.EventSubject("run.completed"))
			if err == nil {
				err = b.NC.Flush()
			}
			testenv.NoError(t, err)
			first := b.Doom(t)
			// With a lease so long it reads the outbox once, at its beginning.
			first.Start(t, point, 1, orchestrator.Config{LeaseTTL: time.Hour})
			const marked = `SELECT count(published_at) FROM run_event WHERE kind = 'completed'`
			b.Await(t, "it leads", `SELECT count(*) = 1 FROM leader WHERE expires_at > tranche_now()`)
			b.load(t, crashChunk, ask()...) // one commit
			b.Serve(t, "statement", nodetest.Echo)
			first.Await(t, b.Bundle)
			testenv.Same(t, b.Number(t, marked), 0, "events marked as published")
			b.StartNode(t)
			nodetest.Until(t, "the event is marked", func() bool { return b.Number(t, marked) == 1 })
			b.Check(t)
			b.wantToldOnce(t, told, times)
		})
	}
}

// wantToldOnce checks that the only completion there is was told so many times, always under its id, and is stored
// once.
func (b *bundle) wantToldOnce(t *testing.T, told *nats.Subscription, times int) {
	t.Helper()
	var id string
	err := b.Pool.QueryRow(t.Context(), `SELECT id::text FROM run_event WHERE kind = 'completed'`).Scan(&id)
	if err == nil {
		err = b.NC.Flush() // what came before is here
	}
	testenv.NoError(t, err)
	n, _, err := told.Pending()
	if err != nil || n != times {
		t.Errorf("it was told %d times, %v; want %d", n, err, times)
	}
	for range n {
		testenv.Same(t, testenv.Must(told.NextMsg(nodetest.Stuck))(t).Header.Get(nats.MsgIdHdr), id,
			"the id that it was told under")
	}
	stream := testenv.Must(b.JS(t).Stream(t.Context(), wire.StreamEvent))(t)
	completed := wire.EventSubject("run.completed")
	info := testenv.Must(stream.Info(t.Context(), jetstream.WithSubjectFilter(completed)))(t)
	testenv.Same(t, info.State.Subjects[completed], 1, "JetStream has %+v", info)
}

// One node crashes when it has kept pieces of results and recorded none of them, another when it has recorded some and
// told no one. A third ends the run: each result is there once and is right, and nothing that they had begun is left,
// in the database or in a stream.
func TestNodesCrashBetweenPieces(t *testing.T) {
	t.Parallel()
	const items, pieces = 12, 3
	of := func(key string) []byte {
		const size = (pieces-1)*wire.DefaultPiece + 1000
		return bytes.Repeat([]byte(key+"|"), size/len(key))[:size]
	}
	b := bare(t)
	svc, err := endpoints.New(testenv.Conn(t, b.NS), endpoints.Config{Name: "pages", Version: "1.0.0"})
	if err == nil {
		err = endpoints.HandleEach(svc, "statement", func(_ context.Context, in nodetest.Account) (*wire.Binary, error) {
			return &wire.Binary{ContentType: "application/pdf", Data: of(in.ID)}, nil
		}, endpoints.Concurrency(4))
	}
	testenv.NoError(t, err)
	nodetest.Run(t, "service", svc.Run)
	steps := ask()
	steps[0].Chunk = 3
	run := b.load(t, items, steps...)
	for _, point := range []string{fault.PiecesKept, fault.RecordCommitted} {
		node := b.Doom(t)
		node.Start(t, point, 1, orchestrator.Config{})
		node.Await(t, b.Bundle)
		kept, recorded := b.Number(t, `SELECT count(*) FROM work_piece`),
			b.Number(t, `SELECT count(*) FROM large_result WHERE recorded_at IS NOT NULL`)
		if kept == 0 || recorded > 0 && point == fault.PiecesKept || b.outcomes(t, run) == items {
			t.Fatalf("at %s, %d pieces were kept and %d results recorded", point, kept, recorded)
		}
	}
	b.StartNode(t)
	b.Want(t, run, 1, items, 0)
	kept := export.New(b.Store)
	for i := range items {
		key := fmt.Sprint("C", i)
		found, err := kept.Result(t.Context(), export.ResultRequest{Run: run, Key: key})
		if err != nil || !found.Large.Valid {
			t.Fatalf("%s: large %v, %v", key, found.Large.Valid, err)
		}
		all := testenv.Must(kept.OpenResult(t.Context(), found.Large.UUID))(t)
		if got, err := io.ReadAll(all); err != nil || !bytes.Equal(got, of(key)) {
			t.Errorf("%s is not what the service sent (%v)", key, err)
		}
	}
	b.Await(t, "nothing is open", `SELECT NOT EXISTS (SELECT FROM large_result WHERE recorded_at IS NULL)`)
	large, all := b.Number(t, `SELECT count(*) FROM large_result`), b.Number(t, `SELECT count(*) FROM work_piece`)
	if large != items || all != pieces*items {
		t.Errorf("%d results have %d pieces; want %d of %d each", large, all, items, pieces)
	}
	b.WantDrained(t)
	b.Check(t)
}

// An item crashes every node that works on it. It is found, and it fails; the others of its chunk do not.
func TestAnItemThatCrashesItsNodes(t *testing.T) {
	t.Parallel()
	const items, poison = 40, 17
	b, l := bare(t), nodetest.NewLedger(0)
	steps := work()
	steps[0].Chunk, steps[0].MaxAttempts = 4, 1
	run := b.load(t, items, steps...)
	deaths := 0
	for b.outcomes(t, run) < items {
		node := b.Doom(t)
		healthy := statements(l, node)["statement"]
		node.Start(t, "", 1, orchestrator.Config{Locals: map[string]fetch.Fetcher{"statement": fetch.Func(
			func(ctx context.Context, req *fetch.Request) ([]fetch.Slot, error) {
				for _, item := range req.Items {
					if item.Ordinal == poison {
						node.Crash()
					}
				}
				return healthy.Fetch(ctx, req)
			})}})
		nodetest.Until(t, "the run ends, or the node does", func() bool { return node.Dead() || b.outcomes(t, run) == items })
		if !node.Dead() {
			break
		}
		if deaths++; deaths > 12 {
			t.Fatal("the item continues crashing nodes")
		}
		node.Await(t, b.Bundle)
	}
	failed := b.Number(t, `SELECT count(*) FROM work_result WHERE run_id = $1 AND error_code = $2 AND ordinal = $3`, run,
		workqueue.CodeDeliveries, poison)
	if b.WantRight(t, run, items-1); failed != 1 || deaths == 0 {
		t.Errorf("the item failed %d times after %d crashes; want once", failed, deaths)
	}
	b.Check(t)
}
