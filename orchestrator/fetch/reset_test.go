package fetch_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tranchehq/tranche/endpoints"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/redo"
)

// An operator resets a step while services are at its requests and another node composes. What they answer late is
// taken for nothing; each item is composed of what the new requests brought, and the run completes once.
func TestResetWhileServicesAreAtIt(t *testing.T) {
	t.Parallel()
	const n = 500
	var asked, again atomic.Int64
	late, composed := make(chan struct{}), &sync.Map{}
	compose := fetch.Typed(func(_ context.Context, _ nodetest.Account, item *fetch.Item) (nodetest.Statement, error) {
		var part nodetest.Statement
		_, err := item.DecodePart("accounts", &part)
		composed.Store(item.Key, part.Of)
		return part, err
	})
	b := setupLocal(t, nil)
	cfg := nodetest.Config(t)
	cfg.Locals = map[string]fetch.Fetcher{"compose": compose}
	other := b.Join(t, b.Store, testenv.Conn(t, b.NS), cfg)
	release := sync.OnceFunc(func() { close(late) })
	t.Cleanup(release)
	b.Serve(t, "accounts", func(_ context.Context, chunk *nodetest.Chunk) error {
		of := "new"
		switch {
		case chunk.Meta().Generation > 1:
			if again.Add(1) == 2 {
				release() // the old answers come among the new ones
			}
		case asked.Add(1) == 1: // is done before the reset
			of = "old"
		default:
			<-late
			of = "late"
		}
		for _, item := range chunk.Items() {
			item.Reply(nodetest.Statement{Of: of})
		}
		return nil
	}, endpoints.Concurrency(16))
	req, composing := nodetest.Small("accounts"), local("compose").Steps[0]
	composing.Needs, composing.Inputs = []int{0}, []int{0}
	req.Steps = append(req.Steps, composing)
	run := b.Start(t, req, n)
	nodetest.Until(t, "the service has all, and some is composed", func() bool {
		recorded := b.Number(t, `SELECT count(*) FROM work_result WHERE run_id = $1 AND step = 1`, run)
		sent := b.Number(t, `SELECT count(*) FROM work_slice WHERE run_id = $1 AND step = 0 AND state = 'sent'`, run)
		return asked.Load() >= n/100 && recorded == 100 && sent == n/100-1
	})
	reset, err := b.Node.Runs().Reset(t.Context(), redo.ResetRequest{Run: run, Actor: "test",
		Select: redo.Selection{Step: "accounts", All: true}})
	if err != nil || reset.Items != n || len(reset.Requests) != n/100-1 {
		t.Fatalf("reset %+v, %v; want %d items and the requests that are out", reset, err, n)
	}
	if done, failed := b.Outcome(t, run, 2); done != n || failed != 0 {
		t.Errorf("done %d, failed %d", done, failed)
	}
	nodetest.Until(t, "the late answers have come, too", func() bool {
		return b.Node.Stats().Stale+other.Stats().Stale >= n/100-1
	})
	for key, of := range composed.Range {
		if of != "new" {
			t.Fatalf("%s was composed of %q at last", key, of)
		}
	}
	if counting := b.Number(t, `SELECT count(*) FROM work_result WHERE run_id = $1 AND generation = 2
		AND convert_from(result, 'utf8') = '{"of":"new"}'`, run); counting != 2*n {
		t.Errorf("%d parts of the new generation are right; want %d", counting, 2*n)
	}
	b.Check(t)
}
