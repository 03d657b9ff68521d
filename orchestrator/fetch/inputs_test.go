package fetch_test

import (
	"bytes"
	"context"
	"sync/atomic"
	"testing"

	"github.com/tranchehq/tranche/gather/fetch"
)

// A few items of a block have parts that are far larger than those of the others, for whose mean chunks are cut. The
// node cuts what it cannot hold at once, and every item is done once, when all have come to the barrier.
func TestChunksOfUnevenParts(t *testing.T) {
	t.Parallel()
	const n = 4000
	large := bytes.Repeat([]byte("x"), 2<<20)
	var most, drawn, composed, early atomic.Int64
	b := setupLocal(t, map[string]fetch.Fetcher{
		"draw": fetch.Each(func(_ context.Context, item *fetch.Item) (fetch.Part, error) {
			drawn.Add(1)
			if item.Ordinal < 30 {
				return fetch.Part{Data: large, ContentType: "text/plain"}, nil
			}
			return fetch.Part{Data: []byte("1")}, nil
		}),
		"bind": fetch.Func(func(_ context.Context, req *fetch.Request) (slots []fetch.Slot, _ error) {
			if drawn.Load() < n {
				early.Add(1)
			}
			var held int64
			for i := range req.Items {
				held += int64(len(req.Items[i].Parts["draw"].Data))
				slots = append(slots, fetch.Slot{Ordinal: req.Items[i].Ordinal, Data: []byte("2")})
			}
			composed.Add(int64(len(slots)))
			for was := most.Load(); held > was && !most.CompareAndSwap(was, held); was = most.Load() {
			}
			return slots, nil
		}),
	})
	req := local("draw")
	bind := local("bind").Steps[0]
	bind.Needs, bind.Inputs, bind.Barrier, bind.Chunk = []int{0}, []int{0}, true, 8192
	req.Steps = append(req.Steps, bind)
	run := b.Start(t, req, n)
	if done, failed := b.Outcome(t, run, 1); done != n || failed != 0 {
		t.Errorf("done %d, failed %d: %s", done, failed, b.Dump(t, run))
	}
	if most.Load() > 32<<20 || composed.Load() != n {
		t.Errorf("a chunk had %d MiB of parts; %d items were composed", most.Load()>>20, composed.Load())
	}
	if early.Load() > 0 {
		t.Errorf("%d chunks began before the barrier was passed", early.Load())
	}
	if b.Node.Stats().Splits == 0 {
		t.Error("nothing was cut")
	}
	if chunk := b.Number(t, `SELECT coalesce(max(bit_count(mask)), 0) FROM work_slice WHERE run_id = $1 AND step = 1
		AND state = 'split'`, run); chunk <= 30 {
		t.Errorf("the chunk that was cut had %d items", chunk)
	}
	b.Check(t)
}
