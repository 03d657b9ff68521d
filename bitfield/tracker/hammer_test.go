package tracker_test

import (
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/tranchehq/tranche/bitfield/tracker"
)

func asState(err error, into **tracker.StateError) bool { return errors.As(err, into) }

// together runs the calls at the same moment, each in a transaction of its own, and returns how often completion was
// reported.
func (b *bench) together(calls ...call) int {
	b.Helper()
	var (
		completions atomic.Int64
		start       = make(chan struct{})
		all         sync.WaitGroup
	)
	for _, c := range calls {
		all.Go(func() {
			<-start
			var completed bool
			err := pgx.BeginFunc(b.Context(), b.pool, func(tx pgx.Tx) (err error) {
				completed, err = c(b.Context(), tx)
				return err
			})
			if err != nil {
				b.Error(err)
			}
			if completed {
				completions.Add(1)
			}
		})
	}
	close(start)
	all.Wait()
	return int(completions.Load())
}

func TestSealAgainstLastAck(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for round := range 300 {
		id := b.open(1)
		calls := []call{sealing(id), acking(id, whole(0, 1))}
		if round%2 == 1 {
			calls[0], calls[1] = calls[1], calls[0]
		}
		if got := b.together(calls...); got != 1 {
			t.Fatalf("round %d: completion was reported %d times; the batch is %+v", round, got, b.get(id))
		}
	}
}

// TestAcksInAnyOrderNeverDeadlock lets several callers ack overlapping groups, given in random order, while the batch
// is sealed: no call fails, and exactly one completes.
func TestAcksInAnyOrderNeverDeadlock(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for round := range 60 {
		id := b.open(3, 3, 3, 3)
		acks := []tracker.Ack{whole(0, 3), whole(1, 3), whole(2, 3), whole(3, 3)}
		calls := []call{sealing(id)}
		for range 3 {
			rand.Shuffle(len(acks), func(i, j int) { acks[i], acks[j] = acks[j], acks[i] })
			calls = append(calls, acking(id, append([]tracker.Ack(nil), acks...)...))
		}
		if got := b.together(calls...); got != 1 {
			t.Fatalf("round %d: completion was reported %d times; the batch is %+v", round, got, b.get(id))
		}
	}
}

// TestGenerationsUnderFire rearms a batch again and again while acks, late and doubled, rain on it: each generation
// completes at most once, and the last one does.
func TestGenerationsUnderFire(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.open(2, 2)
	b.seal(id)
	total := b.together(acking(id, whole(0, 2)), acking(id, whole(1, 2)), acking(id, whole(0, 2), whole(1, 2)))
	for generation := 2; generation <= 40; generation++ {
		if got := b.rearm(id, some(generation%2, 1)); got != generation {
			t.Fatalf("generation %d, want %d", got, generation)
		}
		total += b.together(acking(id, whole(0, 2)), acking(id, whole(1, 2)), acking(id, some(generation%2, 1)))
		if total != generation {
			t.Fatalf("generation %d: %d completions so far", generation, total)
		}
	}
}
