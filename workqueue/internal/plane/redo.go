package plane

import (
	"slices"
)

func Sorted[T ~int16 | ~int32](set map[T]bool) []T {
	list := make([]T, 0, len(set))
	for v := range set {
		list = append(list, v)
	}
	slices.Sort(list)
	return list
}

// Envelope is what an item takes in a request beside its payload, roughly.
const Envelope = 64
