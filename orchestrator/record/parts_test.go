package record_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/export"
	"github.com/tranchehq/tranche/workqueue/start"
)

// gathering is a run of two endpoints, of which one sees what the other has made, twice over.
func gathering() start.LoadRequest {
	req := nodetest.Request("source")
	again, sum := req.Steps[0], req.Steps[0]
	again.Name = "again"
	sum.Name, sum.Endpoint, sum.Needs, sum.Inputs, sum.NoItem = "sum", "sum", []int{0, 1}, []int{0, 1}, true
	req.Steps = append(req.Steps, again, sum)
	return req
}

// serveParts serves the endpoints of gathering: source answers as many bytes as size says, and sum how many it got.
func (b *bundle) serveParts(t *testing.T, size func(ordinal int) int) {
	t.Helper()
	b.Serve(t, "source", func(_ context.Context, chunk *nodetest.Chunk) error {
		for _, item := range chunk.Items() {
			item.Reply(nodetest.Statement{Of: strings.Repeat("x", size(item.Ordinal))})
		}
		return nil
	})
	b.Serve(t, "sum", func(_ context.Context, chunk *nodetest.Chunk) error {
		for _, item := range chunk.Items() {
			part, there, err := endpoints.PartOf[nodetest.Statement](item, "source")
			if err != nil || !there || item.In.ID != "" {
				item.Fail("bad", "there %v, %v, payload %q", there, err, item.In.ID)
				continue
			}
			item.Reply(nodetest.Statement{Of: fmt.Sprint(len(part.Of))})
		}
		return nil
	})
}

// Parts that are many or large for one message come in several, and an item whose part fits none fails by itself.
func TestRequestsCarryPartsInPieces(t *testing.T) {
	t.Parallel()
	b := &bundle{nodetest.SetupWith(t, embedded.NATSConfig{MaxPayload: 64 << 10})}
	size := func(ordinal int) int {
		switch {
		case ordinal == 299:
			return 40 << 10 // which fits a reply, and twice no request
		case ordinal%10 == 0:
			return 20 << 10
		}
		return 100
	}
	b.serveParts(t, size)
	run := b.Start(t, gathering(), 300)
	b.Want(t, run, 1, 299, 1)
	if got := b.ErrorOf(t, run, "C299"); !strings.HasPrefix(got,
		"item_too_large: the item with its parts (source, again) is larger than a message may be") {
		t.Errorf("the large item failed with %q", got)
	}
	exported := testenv.Must(export.New(b.Store).Open(t.Context(), export.Request{Run: run,
		States: []workqueue.Outcome{workqueue.OutcomeDone}}))(t)
	err := exported.Each(t.Context(), func(item *export.Item) error {
		testenv.Same(t, string(item.Result), fmt.Sprintf(`{"of":"%d"}`, size(int(item.Ordinal))), "item %d has", item.Ordinal)
		return nil
	})
	testenv.NoError(t, err)
	b.Check(t)
}

// A result of 2 MB is no part of another step where messages are smaller, whose item fails there alone, by a message
// that names the step; and one where they are not.
func TestLargeResultsInMessages(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		maxPayload, failed int
	}{"by default": {0, 1}, "with 5 MiB": {5 << 20, 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := &bundle{nodetest.SetupWith(t, embedded.NATSConfig{MaxPayload: c.maxPayload})}
			b.serveParts(t, func(ordinal int) int { return 10 + ordinal%2*2_000_000 })
			run := b.Start(t, gathering(), 2)
			if done, failed := b.Outcome(t, run, 1); int(failed) != c.failed || done+failed != 2 {
				t.Fatalf("done %d, failed %d; want %d failed: %s", done, failed, c.failed, b.Dump(t, run))
			}
			if c.failed == 1 {
				if got := b.ErrorOf(t, run, "C1"); !strings.HasPrefix(got, "item_too_large: the part of step source has 2000") ||
					!strings.Contains(got, " (sum): leave source out of its inputs") {
					t.Errorf("the large result failed with %q", got)
				}
			}
			b.Check(t)
		})
	}
}
