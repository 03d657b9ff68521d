package workqueue

import (
	"math/bits"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tranchehq/tranche/bitfield"
)

func TestSucceedKeepsEveryItem(t *testing.T) {
	t.Parallel()
	causes := []Cause{CauseRetry, CauseUnanswered, CauseFailure, CauseDeadline, CauseSession, CauseHandBack, CausePipe,
		CauseExhausted}
	rapid.Check(t, func(t *rapid.T) {
		p := policy{maxAttempts: rapid.IntRange(1, 5).Draw(t, "max attempts"), backoff: time.Millisecond}
		members := rapid.SliceOfNDistinct(rapid.IntRange(0, bitfield.Size-1), 1, 50, rapid.ID).Draw(t, "members")
		mask := bitfield.Of(members...)
		cause := rapid.SampledFrom(causes).Draw(t, "cause")
		failures := rapid.IntRange(0, p.maxAttempts-1).Draw(t, "failures")
		next, final := p.succeed(1, failures, mask, cause)
		if final {
			if len(next) > 0 || !cause.itemsAtFault() || failures+1 < p.maxAttempts {
				t.Fatalf("final too early: %v", next)
			}
			return
		}
		var union bitfield.Set
		total := 0
		for _, n := range next {
			union = union.Or(n.mask)
			total += n.mask.Count()
			if n.attempt != 2 {
				t.Fatalf("attempt %d; want 2", n.attempt)
			}
			if n.failures > p.maxAttempts-1 {
				t.Fatalf("a successor has no attempt left: %d failures of %d", n.failures, p.maxAttempts)
			}
		}
		if union != mask || total != mask.Count() {
			t.Fatalf("the successors hold %d items, %d of them different; want %d", total, union.Count(), mask.Count())
		}
	})
}

// One item that fails every chunk it is in costs its attempts and at most 2·⌈log2 n⌉ slices more; nobody else fails.
func TestBisectIsolatesOnePoisonItem(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 2, 3, 7, 64, 500, 8192} {
		p := policy{maxAttempts: 3}
		slices, rounds := isolate(t, p, size, CauseFailure)
		if limit := p.maxAttempts + 2*bits.Len(uint(size-1)); slices > limit {
			t.Errorf("size %d: %d slices; want at most %d", size, slices, limit)
		}
		// A chunk that kills its services is cut in four at once: about as many slices, and half the rounds.
		deadly, quick := isolate(t, p, size, CauseExhausted)
		if limit := p.maxAttempts + 2*bits.Len(uint(size-1)) + 3; deadly > limit || quick > rounds {
			t.Errorf("size %d: %d slices in %d rounds; want at most %d in %d", size, deadly, quick, limit, rounds)
		}
	}
}

// isolate has one item of a chunk end every slice that it is in, and returns how many slices were made until it stood
// alone and was final, and how many of them were made one after the other.
func isolate(t *testing.T, p policy, size int, cause Cause) (slices, rounds int) {
	t.Helper()
	poison := size * 2 / 3
	queue := []successor{{mask: bitfield.Full(size), attempt: 1}}
	failed, done := 0, 0
	for len(queue) > 0 {
		s := queue[0]
		queue = queue[1:]
		slices++
		rounds = max(rounds, s.attempt)
		if !s.mask.Has(poison) {
			done += s.mask.Count()
			continue
		}
		next, final := p.succeed(s.attempt, s.failures, s.mask, cause)
		if final {
			failed += s.mask.Count()
		}
		queue = append(queue, next...)
	}
	if failed != 1 || done != size-1 {
		t.Errorf("size %d: %d failed, %d done", size, failed, done)
	}
	return slices, rounds
}

func TestPauseGrowsAndIsBounded(t *testing.T) {
	t.Parallel()
	p := policy{backoff: time.Second}
	for n, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 4: 8 * time.Second, 40: maxBackoff} {
		if got := p.pause(n); got > want || got < want*4/5-time.Millisecond {
			t.Errorf("pause(%d) = %s; want %s less up to a fifth", n, got, want)
		}
	}
	if got := (policy{}).pause(3); got != 0 {
		t.Errorf("without a backoff the pause is %s", got)
	}
}
