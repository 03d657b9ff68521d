package redo

import (
	"math/rand/v2"
	"testing"

	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

// Masks of ranges hold what the ranges say, however they lie.
func TestMasksOfRanges(t *testing.T) {
	t.Parallel()
	const items = 3*8192 + 17
	random := rand.New(rand.NewPCG(1, 2))
	for range 50 {
		want := make([]bool, items)
		var ranges []Range
		for range 1 + random.IntN(8) {
			from := random.IntN(items)
			to := min(items-1, from+[]int{0, 1, 63, 8191, 8192, 20000}[random.IntN(6)])
			ranges = append(ranges, Range{workqueue.Ordinal(from), workqueue.Ordinal(to)})
			for o := from; o <= to; o++ {
				want[o] = true
			}
		}
		masks := testenv.Must(masksOfRanges(ranges, items))(t)
		for o := range workqueue.Ordinal(items) {
			block, bit := o.Block()
			testenv.MustSame(t, masks[block] != nil && masks[block].Has(bit), want[o], "%v: ordinal %d is in", ranges, o)
		}
	}
	_, err := masksOfRanges(make([]Range, 1001), items)
	testenv.Says(t, err, "there are 1001 ranges; give at most 1000", "the error")
}
