package record_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// Parts around what a message holds, and larger than a body, are inputs of steps of every kind, from services and
// functions.
func TestPartsOfAnySize(t *testing.T) {
	t.Parallel()
	b := &bundle{nodetest.ServersOnly(t)}
	sizes := map[string]int{"C0": 1<<20 - 1, "C1": 1 << 20, "C2": 1<<20 + 1}
	if !testenv.Race { // which would take half a minute for them: make soak
		sizes["C3"] = wire.DefaultMaxBody + 1<<20
	}
	digest := func(parts ...[]byte) nodetest.Statement {
		return nodetest.Statement{Of: fmt.Sprintf("%x", sha256.Sum256(bytes.Join(parts, nil)))}
	}
	cfg := nodetest.Config(t)
	cfg.Locals = map[string]fetch.Fetcher{
		"made": fetch.Each(func(_ context.Context, item *fetch.Item) (fetch.Part, error) {
			return fetch.Part{Data: pattern(sizes[item.Key] + 1), ContentType: "application/pdf"}, nil
		}),
		"local": fetch.Each(func(_ context.Context, item *fetch.Item) (fetch.Part, error) {
			return fetch.JSON(digest(item.Parts["source"].Data, item.Parts["made"].Data))
		}),
	}
	b.Node = b.Join(t, b.Store, testenv.Conn(t, b.NS), cfg).Node
	serveBytes(t, testenv.Conn(t, b.NS), "source", func(key string) int { return sizes[key] })
	b.Serve(t, "sum", func(ctx context.Context, chunk *nodetest.Chunk) error {
		for _, item := range chunk.Items() {
			source, _, err := endpoints.PartOf[wire.Binary](ctx, item, "source")
			made, _, again := endpoints.PartOf[wire.Binary](ctx, item, "made")
			if err = errors.Join(err, again); err != nil || source.ContentType != "application/pdf" {
				return endpoints.Fail("bad", "%v, %s", err, source.ContentType)
			}
			item.Reply(digest(source.Data, made.Data))
		}
		return nil
	})
	req := nodetest.Request("source")
	for name, kind := range map[string]workqueue.Kind{"made": workqueue.KindLocal, "endpoint": workqueue.KindEndpoint,
		"direct": workqueue.KindDirect, "local": workqueue.KindLocal} {
		step := req.Steps[0]
		step.Name, step.Kind, step.Endpoint = name, kind, "sum"
		if kind == workqueue.KindLocal {
			step.Endpoint = workqueue.TargetKey(kind, name)
		}
		if name == "made" {
			req.Steps = slices.Insert(req.Steps, 1, step)
			continue
		}
		step.Needs, step.Inputs, step.NoItem = []int{0, 1}, []int{0, 1}, true
		req.Steps = append(req.Steps, step)
	}
	run := b.Start(t, req, len(sizes))
	b.Want(t, run, 1, len(sizes), 0)
	for key, size := range sizes {
		testenv.Same(t, b.Number(t, `SELECT count(*) FROM run_item_parts WHERE run_id = $1 AND key = $2
			AND result->>'of' = $3`, run, key, digest(pattern(size), pattern(size+1)).Of), 3, "steps that saw %s", key)
	}
	b.Check(t)
}

// An item whose part is lost fails alone, and not indefinitely.
func TestAPartThatIsLost(t *testing.T) {
	t.Parallel()
	b := &bundle{nodetest.ServersOnly(t)}
	cfg := nodetest.Config(t)
	cfg.Locals = map[string]fetch.Fetcher{
		"lose": fetch.Each(func(ctx context.Context, _ *fetch.Item) (fetch.Part, error) {
			_, err := b.Store.Pool.Exec(ctx, `DELETE FROM work_piece WHERE large_id = (
				SELECT large_id FROM work_result WHERE step = 0 AND ordinal = 1)`)
			return fetch.Part{Data: []byte("1")}, err
		}),
		"sum": fetch.Each(func(_ context.Context, item *fetch.Item) (fetch.Part, error) {
			return fetch.JSON(len(item.Parts["source"].Data))
		}),
	}
	b.Node = b.Join(t, b.Store, testenv.Conn(t, b.NS), cfg).Node
	serveBytes(t, testenv.Conn(t, b.NS), "source", func(string) int { return 2 << 20 })
	req := nodetest.Request("source")
	req.Steps = slices.Repeat(req.Steps, 3)
	for i, name := range []string{"lose", "sum"} {
		step := &req.Steps[i+1]
		step.Name, step.Kind, step.Endpoint = name, workqueue.KindLocal, workqueue.TargetKey(workqueue.KindLocal, name)
	}
	req.Steps[1].Needs, req.Steps[2].Needs, req.Steps[2].Inputs = []int{0}, []int{0, 1}, []int{0}
	run := b.Start(t, req, 3)
	b.Want(t, run, 1, 2, 1)
	testenv.Has(t, b.ErrorOf(t, run, "C1"), wire.CodePartGone+": the part of step source", "the item")
}

// A service gets a part only as the request referred to it, of a request to its endpoint: what is redone meanwhile is
// refused, and comes with the item's next request. A restart of the node delays it.
func TestAPartIsFetchedAsItWasClaimed(t *testing.T) {
	t.Parallel()
	b := &bundle{nodetest.ServersOnly(t)}
	node := b.Join(t, b.Store, testenv.Conn(t, b.NS), nodetest.Config(t))
	b.Node = node.Node
	var size atomic.Int64
	size.Store(2 << 20)
	serveBytes(t, testenv.Conn(t, b.NS), "source", func(string) int { return int(size.Load()) })
	asks, goOn, ended := make(chan wire.PartQuery, 9), make(chan struct{}), make(chan error, 9)
	b.Serve(t, "sum", func(ctx context.Context, chunk *nodetest.Chunk) error {
		item := chunk.Items()[0]
		asks <- wire.PartQuery{Slice: item.Info().Root, Step: "source", PartRef: *wire.RefTo(pattern(2 << 20))}
		<-goOn
		part, _, err := item.Part(ctx, "source")
		ended <- err
		item.Reply(nodetest.Statement{Of: fmt.Sprint(len(part.Data))})
		return err
	})
	req := nodetest.Request("source")
	sum := req.Steps[0]
	sum.Name, sum.Endpoint, sum.Needs, sum.Inputs = "sum", "sum", []int{0}, []int{0}
	req.Steps = append(req.Steps, sum)
	run := b.Start(t, req, 1)
	query := <-asks
	ask := func(endpoint string, query wire.PartQuery) string {
		t.Helper()
		msg := testenv.Must(b.NC.Request(wire.PartSubject(endpoint), testenv.Must(json.Marshal(query))(t), nodetest.Stuck))(t)
		return cmp.Or(msg.Header.Get(wire.HeaderErrorCode), fmt.Sprint(len(msg.Data)))
	}
	other, elsewhere, short := query, query, query
	other.Slice, elsewhere.Ordinal, short.From = uuid.New(), 1, query.Bytes-1
	long := query
	long.Bytes++
	testenv.Same(t, ask("sum", query), fmt.Sprint(wire.DefaultPiece), "the first piece")
	testenv.Same(t, ask("sum", short), "1", "the last byte")
	testenv.Same(t, ask("source", query), wire.CodePartGone, "another endpoint")
	for _, query := range []wire.PartQuery{other, elsewhere, long} {
		testenv.Same(t, ask("sum", query), wire.CodePartGone, "%+v", query)
	}
	testenv.Same(t, ask("sum", wire.PartQuery{}), wire.CodeBadRequest, "no part")

	size.Add(1)
	testenv.Must(node.Runs().Reset(t.Context(), redo.ResetRequest{Run: run, Actor: "test",
		Select: redo.Selection{Step: "source", All: true}}))(t)
	testenv.Same(t, ask("sum", query), wire.CodePartGone, "after the reset")
	goOn <- struct{}{}
	testenv.Says(t, <-ended, wire.CodePartGone, "a part that is redone")

	<-asks
	testenv.NoError(t, node.Stop())
	goOn <- struct{}{}
	b.Join(t, b.Store, testenv.Conn(t, b.NS), nodetest.Config(t))
	testenv.NoError(t, <-ended)
	b.Want(t, run, 2, 1, 0)
	_, result := b.result(t, run, "C0")
	testenv.Same(t, string(result), `{"of":"2097153"}`, "the result")
	b.Check(t)
}
