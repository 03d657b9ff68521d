package workqueue

import (
	"math/bits"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tranchehq/tranche/bitfield"
)

func TestSucceedKeepsEveryItem(t *testing.T) {
	t.Parallel()
	causes := []Cause{CauseRetry, CauseUnanswered, CauseFailure, CauseDeadline, CauseSession, CauseHandBack, CausePipe,
		CauseExhausted, CauseUnreadable, CauseBreaker, CauseThrottled, CauseSilence}
	origins := slices.Concat(causes, []Cause{CauseCut, CauseBisect, CauseProbe})
	rapid.Check(t, func(t *rapid.T) {
		p := policy{maxAttempts: rapid.IntRange(1, 5).Draw(t, "max attempts"), backoff: time.Millisecond}
		members := rapid.SliceOfNDistinct(rapid.IntRange(0, bitfield.Size-1), 1, 50, rapid.ID).Draw(t, "members")
		mask := bitfield.Of(members...)
		was := ending{attempt: 1, failures: rapid.IntRange(0, p.maxAttempts-1).Draw(t, "failures"),
			origin: rapid.SampledFrom(origins).Draw(t, "origin"), cause: rapid.SampledFrom(causes).Draw(t, "cause"),
			hopeless: rapid.Bool().Draw(t, "hopeless")}
		next, final := p.succeed(was, mask)
		if final {
			singled := mask.Count() == 1 || was.cause == CauseRetry || was.cause == CauseUnanswered
			spent := was.hopeless || was.failures+1 >= p.maxAttempts
			if len(next) > 0 || !was.cause.itemsAtFault() || !singled || !spent {
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
			if was.cause.itemsAtFault() && n.mask == mask && n.failures == was.failures {
				t.Fatalf("no progress: %+v follows %+v", n, was)
			}
		}
		if union != mask || total != mask.Count() {
			t.Fatalf("the successors hold %d items, %d of them different; want %d", total, union.Count(), mask.Count())
		}
	})
}

// serving says how a chunk ends that holds poison; it may change its mind from chunk to chunk.
type serving func() (cause Cause, hopeless bool)

func always(cause Cause, hopeless bool) serving {
	return func() (Cause, bool) { return cause, hopeless }
}

// isolation is what it took to find poison items.
type isolation struct {
	slices, rounds int
	failed, done   int
	alone          int // slices of one poison item alone
}

// isolate has every slice fail that holds one of the poison items, until nothing is left.
func isolate(t interface{ Fatalf(string, ...any) }, p policy, size int, poison bitfield.Set, fails serving,
) (out isolation) {
	type issued struct {
		successor
		origin Cause
	}
	queue := []issued{{successor{mask: bitfield.Full(size), attempt: 1}, CauseCut}}
	for len(queue) > 0 {
		s := queue[0]
		queue = queue[1:]
		out.slices++
		out.rounds = max(out.rounds, s.attempt)
		bad := s.mask.And(poison)
		if bad.Empty() {
			out.done += s.mask.Count()
			continue
		}
		if s.mask.Count() == 1 {
			out.alone++
		}
		cause, hopeless := fails()
		next, final := p.succeed(ending{s.attempt, s.failures, s.origin, cause, hopeless}, s.mask)
		if final {
			out.failed += s.mask.Count()
		}
		for _, n := range next {
			queue = append(queue, issued{n, n.cause})
		}
		if out.slices > 100*bitfield.Size {
			t.Fatalf("it does not come to an end: %d slices", out.slices)
		}
	}
	return out
}

// One item that fails every chunk it is in costs its attempts and at most 2·⌈log2 n⌉ slices more; nobody else fails. A
// service that names a code of its own for it each time, as a crash, a deadline or a broken reply, changes nothing.
func TestBisectIsolatesOnePoisonItem(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.OneOf(rapid.IntRange(1, 600), rapid.IntRange(1, bitfield.Size)).Draw(t, "size")
		p := policy{maxAttempts: rapid.IntRange(1, 6).Draw(t, "attempts")}
		at := rapid.IntRange(0, size-1).Draw(t, "position")
		causes := []Cause{CauseFailure, CauseDeadline, CauseUnreadable}
		out := isolate(t, p, size, bitfield.Of(at), func() (Cause, bool) {
			return rapid.SampledFrom(causes).Draw(t, "cause"), rapid.Bool().Draw(t, "hopeless")
		})
		if limit := p.maxAttempts + 2*bits.Len(uint(size-1)); out.slices > limit {
			t.Fatalf("%d slices; want at most %d", out.slices, limit)
		}
		if out.failed != 1 || out.done != size-1 || out.alone > p.maxAttempts {
			t.Fatalf("%+v of %d items", out, size)
		}
	})
}

// A chunk that kills its services is cut in four at once: about as many slices, and half the rounds.
func TestBisectOfADeadlyItemTakesFewRounds(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 2, 3, 7, 64, 500, 8192} {
		p := policy{maxAttempts: 3}
		halved := isolate(t, p, size, bitfield.Of(size*2/3), always(CauseFailure, false))
		deadly := isolate(t, p, size, bitfield.Of(size*2/3), always(CauseExhausted, false))
		limit := p.maxAttempts + 2*bits.Len(uint(size-1)) + 3
		if deadly.slices > limit || deadly.rounds > halved.rounds || deadly.failed != 1 {
			t.Errorf("size %d: %+v; want at most %d slices in %d rounds", size, deadly, limit, halved.rounds)
		}
	}
}

// However many items are poison: they fail, the others are done, and it comes to an end.
func TestBisectIsolatesManyPoisonItems(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.IntRange(2, 5000).Draw(t, "size")
		p := policy{maxAttempts: rapid.IntRange(1, 4).Draw(t, "attempts")}
		first := rapid.IntRange(0, size-2).Draw(t, "first")
		poison := bitfield.Of(first, first+1) // two adjacent ones
		for _, bit := range rapid.SliceOfN(rapid.IntRange(0, size-1), 0, 10).Draw(t, "more") {
			poison.Add(bit)
		}
		n := poison.Count()
		out := isolate(t, p, size, poison, always(CauseFailure, rapid.Bool().Draw(t, "hopeless")))
		if limit := n * (p.maxAttempts + 2*bits.Len(uint(size-1))); out.slices > limit || out.failed != n ||
			out.done != size-n {
			t.Fatalf("%+v of %d items, %d of them poison; want at most %d slices", out, size, n, limit)
		}
	})
}

// A silence without evidence costs nobody an attempt: a chunk is tried whole once and then halved, and what stands
// alone is issued again.
func TestSilenceCostsNobodyAnAttempt(t *testing.T) {
	t.Parallel()
	for _, attempts := range []int{1, 3} {
		p := policy{maxAttempts: attempts}
		queue := []successor{{mask: bitfield.Full(500), attempt: 1, cause: CauseCut}}
		whole, alone := 0, 0
		for len(queue) > 0 {
			s := queue[0]
			queue = queue[1:]
			n := s.mask.Count()
			if n == 500 {
				whole++
			}
			next, final := p.succeed(ending{s.attempt, s.failures, s.cause, CauseSilence, false}, s.mask)
			if final || s.failures != 0 {
				t.Fatalf("%d attempts: %+v lost one", attempts, s)
			}
			if n == 1 {
				if alone++; len(next) != 1 || next[0].mask != s.mask {
					t.Fatalf("%d attempts: %+v follows a lone item", attempts, next)
				}
				continue
			}
			queue = append(queue, next...)
		}
		if alone != 500 || whole > 2 || attempts > 1 && whole != 2 {
			t.Errorf("%d attempts: %d stood alone, the whole was tried %d times", attempts, alone, whole)
		}
	}
}

func TestPolicyGoesBeforeWhatTheServiceSays(t *testing.T) {
	t.Parallel()
	p := policy{retryCodes: []string{"busy", "both"}, neverRetry: []string{"gone", "both"}}
	for _, tc := range []struct {
		code        string
		retry, want bool
	}{
		{"other", true, true}, {"other", false, false}, {"busy", false, true}, {"gone", true, false}, {"both", true, false},
	} {
		if got := p.retries(SlotError{Code: tc.code, Retry: tc.retry}); got != tc.want {
			t.Errorf("%+v: retried %v", tc, got)
		}
	}
}

func TestPauseGrowsAndIsBounded(t *testing.T) {
	t.Parallel()
	p := policy{backoff: time.Second}
	for n, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 4: 8 * time.Second, 40: maxBackoff} {
		if got := p.pause(n); got > want || got < want*4/5-time.Millisecond {
			t.Errorf("pause(%d) = %s; want %s less up to a fifth", n, got, want)
		}
	}
	short := policy{backoff: time.Second, maxBackoff: 3 * time.Second}
	if got := short.pause(9); got > 3*time.Second || got < 3*time.Second*4/5-time.Millisecond {
		t.Errorf("with a longest pause of 3 s it is %s", got)
	}
	if got := (policy{}).pause(3); got != 0 {
		t.Errorf("without a backoff the pause is %s", got)
	}
}

func TestThrottledPauseGrowsAndSpreads(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		p     policy
		issue int
		least time.Duration
	}{
		{policy{backoff: time.Second}, 1, time.Second},
		{policy{backoff: time.Second}, 4, 8 * time.Second},
		{policy{backoff: time.Second}, 49, maxBackoff},
		{policy{backoff: time.Second, maxBackoff: 3 * time.Second}, 9, 3 * time.Second},
		{policy{}, 1, throttledPause},
		{policy{maxBackoff: time.Millisecond}, 7, throttledPause},
	} {
		if got := tc.p.throttled(tc.issue); got < tc.least || got > 2*tc.least {
			t.Errorf("%+v: after issue %d the pause is %s; want %s and up to as much again", tc.p, tc.issue, got, tc.least)
		}
	}
}
