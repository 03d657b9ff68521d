package tracker_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/bitfield/tracker"
)

// large makes a sealed batch of the given number of full groups: 122 hold a million items.
func (b *bench) large(groups int) uuid.UUID {
	id := b.open(slices.Repeat([]int{bitfield.Size}, groups)...)
	b.seal(id)
	return id
}

// BenchmarkAckMasks acks chunks of 455 items, 1 or 3 groups in a call, as a recording commit does. What a begin and a
// commit cost is the first line.
func BenchmarkAckMasks(b *testing.B) {
	bench := setup(b)
	b.Run("empty transaction", func(b *testing.B) {
		for b.Loop() {
			bench.in(func(pgx.Tx) error { return nil })
		}
	})
	chunks := bitfield.Full(bitfield.Size).Split(455)
	for _, of := range []int{122, 1221} {
		for _, groups := range []int{1, 3} {
			b.Run(fmt.Sprintf("groups=%d of %d", groups, of), func(b *testing.B) {
				id, n := bench.large(of), 0
				for b.Loop() {
					acks := make([]tracker.Ack, groups)
					for i := range acks {
						acks[i] = tracker.Ack{Group: (n + i) % of, Mask: chunks[n/of%len(chunks)]}
					}
					n += groups
					bench.ack(id, acks...)
				}
			})
		}
	}
}

func BenchmarkAddGroups(b *testing.B) {
	bench := setup(b)
	for b.Loop() {
		bench.large(122)
	}
}
