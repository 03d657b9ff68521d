package workqueue_test

import (
	"testing"

	"github.com/tranchehq/tranche/workqueue"
)

// A canary takes one of each ⌈items/n⌉ items of the run, not always the same one, and holds the others back.
func TestCanarySampleIsSpread(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, c := range []struct{ items, canary, sample, stride int }{
		{20_000, 100, 100, 200}, {20_000, 1, 1, 20_000}, {20_000, 3, 3, 6667}, {1000, 999, 500, 2}, {16_385, 2, 2, 8193},
		{7, 3, 3, 3},
	} {
		req := chunked(500)
		req.Canary, req.MaxFailed = c.canary, "10%"
		run := b.load(req, c.items)
		claimed := b.claim(run, plenty)
		if n := b.disjoint(claimed); n != c.sample {
			t.Errorf("a canary of %d of %d has %d items; want %d", c.canary, c.items, n, c.sample)
		}
		seen, places := map[int]bool{}, map[int]bool{}
		for _, s := range claimed {
			for _, o := range ordinals(s) {
				if stretch := int(o) / c.stride; seen[stretch] {
					t.Errorf("two items of stretch %d are in a sample of one of each %d", stretch, c.stride)
				}
				seen[int(o)/c.stride] = true
				places[int(o)%c.stride] = true
			}
		}
		if c.sample >= 100 && c.stride >= 100 && len(places) < c.sample/3 {
			t.Errorf("the sample takes %d places of a stretch of %d: what repeats goes unseen", len(places), c.stride)
		}
		if n := b.number(`SELECT sum(bit_count(held)) FROM work_block WHERE run_id = $1`, run); n != c.items-c.sample {
			t.Errorf("%d items are held back; want %d", n, c.items-c.sample)
		}
		if n := b.number(`SELECT count(*) FROM batchrun WHERE id = $1 AND canary_state = 'sampling' AND failed_limit = $2`,
			run, c.items/10); n != 1 {
			t.Error("the run does not say that it is sampling, or how many may fail")
		}
		b.check()
	}
}

func TestCanaryOfAllItemsIsNone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, canary := range []int{0, 10, 11} {
		req := chunked(4)
		req.Canary = canary
		run := b.load(req, 10)
		b.wantTally(run, tally{ready: 10})
		if n := b.number(`SELECT count(*) FROM batchrun r JOIN work_block b ON b.run_id = r.id
			WHERE r.id = $1 AND canary_state IS NULL AND failed_limit IS NULL AND held IS NULL`, run); n != 1 {
			t.Errorf("a canary of %d of 10 items holds some back", canary)
		}
	}
	b.check()
}

// Chunks are of the size that was learned, as far as the step allows, and never above a cap while it holds.
func TestSizeOfAutomaticChunks(t *testing.T) {
	t.Parallel()
	b := setup(t)
	req := chunked(8192)
	req.Steps[0].ChunkAuto = true
	for _, c := range []struct {
		set  string
		want int
	}{
		{`SET changed_at = clock_timestamp()`, workqueue.DefaultAutoChunk},
		{`SET chunk = 64`, 64},
		{`SET chunk_cap = 16, chunk_cap_until = clock_timestamp() + interval '1 hour'`, 16},
		{`SET chunk_cap_until = clock_timestamp()`, 64},
		{`SET chunk = 8000`, 8000},
	} {
		run := b.load(req, 8000)
		b.exec(`UPDATE endpoint_pace ` + c.set)
		if n := itemsOf(b.claim(run, 1)); n != c.want {
			t.Errorf("%s: a chunk of %d items; want %d", c.set, n, c.want)
		}
	}
	req.Steps[0].ChunkBytes = 66 * 20 // twenty items of two bytes and their envelopes
	if n := itemsOf(b.claim(b.load(req, 8000), 1)); n != 20 {
		t.Errorf("a chunk of %d items; want as many as the bytes take", n)
	}
}
