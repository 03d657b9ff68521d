package redo

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
)

// Range is consecutive ordinals, both ends included.
type Range struct{ From, To workqueue.Ordinal }

// MaxRanges is how many ranges a selection can have.
const MaxRanges = 1000

// problem is what is wrong with the i-th range of a run that has so many items.
func (r Range) problem(i int, items int64) error {
	at := fmt.Sprintf("ranges[%d] is %d to %d", i, r.From, r.To)
	switch {
	case r.From > r.To:
		return &workqueue.SettingError{Detail: at + "; give the smaller ordinal first"}
	case items == 0:
		return &workqueue.SettingError{Detail: at + ", and the run has no items"}
	case r.From < 0 || int64(r.To) >= items:
		return &workqueue.SettingError{Detail: fmt.Sprintf("%s, and the ordinals of the run go from 0 to %d", at, items-1)}
	}
	return nil
}

// masksOfRanges is the items of the ranges, which may overlap, of a run that has so many. It costs as much as the run
// has blocks, at the most.
func masksOfRanges(ranges []Range, items int64) (blockMasks, error) {
	if len(ranges) > MaxRanges {
		return nil, &workqueue.SettingError{Detail: fmt.Sprintf("there are %d ranges, and at most %d are taken at once",
			len(ranges),
			MaxRanges)}
	}
	for i, r := range ranges {
		if err := r.problem(i, items); err != nil {
			return nil, err
		}
	}
	masks := blockMasks{}
	for _, r := range apart(ranges) {
		first, from := r.From.Block()
		last, to := r.To.Block()
		for b := first; b <= last; b++ {
			lo, hi := 0, bitfield.Size
			if b == first {
				lo = from
			}
			if b == last {
				hi = to + 1
			}
			part := bitfield.Range(lo, hi)
			if masks[b] != nil {
				part = part.Or(*masks[b])
			}
			masks[b] = &part
		}
	}
	return masks, nil
}

// apart is the same ordinals in ranges that do not overlap.
func apart(ranges []Range) []Range {
	sorted := slices.SortedFunc(slices.Values(ranges), func(a, b Range) int { return cmp.Compare(a.From, b.From) })
	all := sorted[:0]
	for _, r := range sorted {
		if n := len(all); n > 0 && r.From <= all[n-1].To {
			all[n-1].To = max(all[n-1].To, r.To)
			continue
		}
		all = append(all, r)
	}
	return all
}

// and is the items that are in both.
func (m blockMasks) and(other blockMasks) blockMasks {
	both := blockMasks{}
	for b, mask := range m {
		if other[b] == nil {
			continue
		}
		if common := mask.And(*other[b]); !common.Empty() {
			both[b] = &common
		}
	}
	return both
}

// auditedRanges is how many ranges the audit log is told of; of others only how many there were.
const auditedRanges = 100

// auditRanges tells the audit log of the ranges.
func (sel *Selection) auditRanges(detail map[string]any) {
	if len(sel.Ranges) == 0 {
		return
	}
	var told [][2]workqueue.Ordinal
	for _, r := range sel.Ranges[:min(len(sel.Ranges), auditedRanges)] {
		told = append(told, [2]workqueue.Ordinal{r.From, r.To})
	}
	detail["ranges"] = told
	if more := len(sel.Ranges) - len(told); more > 0 {
		detail["more_ranges"] = more
	}
}
