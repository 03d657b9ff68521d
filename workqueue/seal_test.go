package workqueue_test

import (
	"testing"

	"github.com/tranchehq/tranche/internal/testing/storetest"
)

// A canary takes one of each ⌈items/n⌉ items of the run, not always the same one, and holds the others back.
func TestCanarySampleIsSpread(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, c := range []struct{ items, canary, sample, stride int }{
		{20_000, 100, 100, 200}, {20_000, 1, 1, 20_000}, {20_000, 3, 3, 6667}, {1000, 999, 500, 2}, {16_385, 2, 2, 8193},
		{7, 3, 3, 3},
	} {
		req := storetest.Chunked(500)
		req.Canary, req.MaxFailed = c.canary, "10%"
		run := b.Load(req, c.items)
		claimed := b.Claim(run, storetest.Plenty)
		if n := b.Disjoint(claimed); n != c.sample {
			t.Errorf("a canary of %d of %d has %d items; want %d", c.canary, c.items, n, c.sample)
		}
		seen, places := map[int]bool{}, map[int]bool{}
		for _, s := range claimed {
			for _, o := range storetest.Ordinals(s) {
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
		if n := b.Number(`SELECT sum(bit_count(held)) FROM work_block WHERE run_id = $1`, run); n != c.items-c.sample {
			t.Errorf("%d items are held back; want %d", n, c.items-c.sample)
		}
		if n := b.Number(`SELECT count(*) FROM batchrun WHERE id = $1 AND canary_state = 'sampling' AND failed_limit = $2`,
			run, c.items/10); n != 1 {
			t.Error("the run does not say that it is sampling, or how many may fail")
		}
		b.Check()
	}
}

func TestCanaryOfAllItemsIsNone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, canary := range []int{0, 10, 11} {
		req := storetest.Chunked(4)
		req.Canary = canary
		run := b.Load(req, 10)
		b.WantTally(run, storetest.Tally{Ready: 10})
		if n := b.Number(`SELECT count(*) FROM batchrun r JOIN work_block b ON b.run_id = r.id
			WHERE r.id = $1 AND canary_state IS NULL AND failed_limit IS NULL AND held IS NULL`, run); n != 1 {
			t.Errorf("a canary of %d of 10 items holds some back", canary)
		}
	}
	b.Check()
}
