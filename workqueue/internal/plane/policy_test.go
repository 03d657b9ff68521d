package plane

import (
	"math/bits"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/tranchehq/tranche/bitfield"
	"github.com/tranchehq/tranche/workqueue"
)

func TestSucceedKeepsEveryItem(t *testing.T) {
	t.Parallel()
	causes := []workqueue.Cause{workqueue.CauseRetry, workqueue.CauseUnanswered, workqueue.CauseFailure,
		workqueue.CauseDeadline, workqueue.CauseSession, workqueue.CauseHandBack, workqueue.CauseStreams,
		workqueue.CauseExhausted, workqueue.CauseUnreadable, workqueue.CauseBreaker, workqueue.CauseThrottled,
		workqueue.CauseSilence}
	origins := slices.Concat(causes, []workqueue.Cause{workqueue.CauseReady, workqueue.CauseBisect, workqueue.CauseProbe})
	rapid.Check(t, func(t *rapid.T) {
		p := Policy{MaxAttempts: rapid.IntRange(1, 5).Draw(t, "max attempts"), Backoff: time.Millisecond}
		members := rapid.SliceOfNDistinct(rapid.IntRange(0, bitfield.Size-1), 1, 50, rapid.ID).Draw(t, "members")
		mask := bitfield.Of(members...)
		was := Ending{Attempt: 1, Failures: rapid.IntRange(0, p.MaxAttempts-1).Draw(t, "failures"),
			Origin: rapid.SampledFrom(origins).Draw(t, "origin"), Cause: rapid.SampledFrom(causes).Draw(t, "cause"),
			Hopeless: rapid.Bool().Draw(t, "hopeless")}
		next, final := p.Succeed(was, mask)
		if final {
			singled := mask.Count() == 1 || was.Cause == workqueue.CauseRetry || was.Cause == workqueue.CauseUnanswered
			spent := was.Hopeless || was.Failures+1 >= p.MaxAttempts
			if len(next) > 0 || !was.Cause.ItemsAtFault() || !singled || !spent {
				t.Fatalf("final too early: %v", next)
			}
			return
		}
		var union bitfield.Set
		total := 0
		for _, n := range next {
			union = union.Or(n.Mask)
			total += n.Mask.Count()
			if n.Attempt != 2 {
				t.Fatalf("attempt %d; want 2", n.Attempt)
			}
			if n.Failures > p.MaxAttempts-1 {
				t.Fatalf("a successor has no attempt left: %d failures of %d", n.Failures, p.MaxAttempts)
			}
			if was.Cause.ItemsAtFault() && n.Mask == mask && n.Failures == was.Failures {
				t.Fatalf("no progress: %+v follows %+v", n, was)
			}
		}
		if union != mask || total != mask.Count() {
			t.Fatalf("the successors hold %d items, %d of them different; want %d", total, union.Count(), mask.Count())
		}
	})
}

// serving says how a chunk ends that holds poison; it may change its mind from chunk to chunk.
type serving func() (cause workqueue.Cause, hopeless bool)

func always(cause workqueue.Cause, hopeless bool) serving {
	return func() (workqueue.Cause, bool) { return cause, hopeless }
}

// isolation is what it took to find poison items.
type isolation struct {
	slices, rounds int
	failed, done   int
	alone          int // slices of one poison item alone
}

// isolate has every slice fail that holds one of the poison items, until nothing is left.
func isolate(t interface{ Fatalf(string, ...any) }, p Policy, size int, poison bitfield.Set, fails serving,
) (out isolation) {
	type issued struct {
		Successor
		origin workqueue.Cause
	}
	queue := []issued{{Successor{Mask: bitfield.Full(size), Attempt: 1}, workqueue.CauseReady}}
	for len(queue) > 0 {
		s := queue[0]
		queue = queue[1:]
		out.slices++
		out.rounds = max(out.rounds, s.Attempt)
		bad := s.Mask.And(poison)
		if bad.Empty() {
			out.done += s.Mask.Count()
			continue
		}
		if s.Mask.Count() == 1 {
			out.alone++
		}
		cause, hopeless := fails()
		next, final := p.Succeed(Ending{s.Attempt, s.Failures, s.origin, cause, hopeless}, s.Mask)
		if final {
			out.failed += s.Mask.Count()
		}
		for _, n := range next {
			queue = append(queue, issued{n, n.Cause})
		}
		if out.slices > 100*bitfield.Size {
			t.Fatalf("it does not come to an end: %d slices", out.slices)
		}
	}
	return out
}

// One item that fails every chunk it is in costs its attempts and at most 2·⌈log2 n⌉ slices more; no one else fails. A
// service that names a code of its own for it each time, as a crash, a deadline or a broken reply, changes nothing.
func TestBisectIsolatesOnePoisonItem(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		size := rapid.OneOf(rapid.IntRange(1, 600), rapid.IntRange(1, bitfield.Size)).Draw(t, "size")
		p := Policy{MaxAttempts: rapid.IntRange(1, 6).Draw(t, "attempts")}
		at := rapid.IntRange(0, size-1).Draw(t, "position")
		causes := []workqueue.Cause{workqueue.CauseFailure, workqueue.CauseDeadline, workqueue.CauseUnreadable}
		out := isolate(t, p, size, bitfield.Of(at), func() (workqueue.Cause, bool) {
			return rapid.SampledFrom(causes).Draw(t, "cause"), rapid.Bool().Draw(t, "hopeless")
		})
		if limit := p.MaxAttempts + 2*bits.Len(uint(size-1)); out.slices > limit {
			t.Fatalf("%d slices; want at most %d", out.slices, limit)
		}
		if out.failed != 1 || out.done != size-1 || out.alone > p.MaxAttempts {
			t.Fatalf("%+v of %d items", out, size)
		}
	})
}

// A chunk that kills its services is cut in four, not halved twice: about as many slices, and half the rounds.
func TestBisectOfADeadlyItemTakesFewRounds(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 2, 3, 7, 64, 500, 8192} {
		p := Policy{MaxAttempts: 3}
		halved := isolate(t, p, size, bitfield.Of(size*2/3), always(workqueue.CauseFailure, false))
		deadly := isolate(t, p, size, bitfield.Of(size*2/3), always(workqueue.CauseExhausted, false))
		limit := p.MaxAttempts + 2*bits.Len(uint(size-1)) + 3
		if deadly.slices > limit || deadly.rounds > halved.rounds || deadly.failed != 1 {
			t.Errorf("size %d: %+v; want at most %d slices in %d rounds", size, deadly, limit, halved.rounds)
		}
	}
}

// A silence without evidence costs no one an attempt: a chunk is tried whole once and then halved, and what stands
// alone is reissued.
func TestSilenceCostsNobodyAnAttempt(t *testing.T) {
	t.Parallel()
	for _, attempts := range []int{1, 3} {
		p := Policy{MaxAttempts: attempts}
		queue := []Successor{{Mask: bitfield.Full(500), Attempt: 1, Cause: workqueue.CauseReady}}
		whole, alone := 0, 0
		for len(queue) > 0 {
			s := queue[0]
			queue = queue[1:]
			n := s.Mask.Count()
			if n == 500 {
				whole++
			}
			next, final := p.Succeed(Ending{s.Attempt, s.Failures, s.Cause, workqueue.CauseSilence, false}, s.Mask)
			if final || s.Failures != 0 {
				t.Fatalf("%d attempts: %+v lost one", attempts, s)
			}
			if n == 1 {
				if alone++; len(next) != 1 || next[0].Mask != s.Mask {
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

func TestPauseGrowsAndIsBounded(t *testing.T) {
	t.Parallel()
	p := Policy{Backoff: time.Second}
	for n, want := range map[int]time.Duration{1: time.Second, 2: 2 * time.Second, 4: 8 * time.Second, 40: maxBackoff} {
		if got := p.Pause(n); got > want || got < want*4/5-time.Millisecond {
			t.Errorf("pause(%d) = %s; want %s less up to a fifth", n, got, want)
		}
	}
	short := Policy{Backoff: time.Second, MaxBackoff: 3 * time.Second}
	if got := short.Pause(9); got > 3*time.Second || got < 3*time.Second*4/5-time.Millisecond {
		t.Errorf("with a longest pause of 3 s it is %s", got)
	}
	if got := (Policy{}).Pause(3); got != 0 {
		t.Errorf("without a backoff the pause is %s", got)
	}
}

func TestThrottledPauseGrowsAndSpreads(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		p     Policy
		issue int
		least time.Duration
	}{
		{Policy{Backoff: time.Second}, 1, time.Second},
		{Policy{Backoff: time.Second}, 4, 8 * time.Second},
		{Policy{Backoff: time.Second}, 49, maxBackoff},
		{Policy{Backoff: time.Second, MaxBackoff: 3 * time.Second}, 9, 3 * time.Second},
		{Policy{}, 1, throttledPause},
		{Policy{MaxBackoff: time.Millisecond}, 7, throttledPause},
	} {
		if got := tc.p.Throttled(tc.issue); got < tc.least || got > 2*tc.least {
			t.Errorf("%+v: after issue %d the pause is %s; want %s and up to as much again", tc.p, tc.issue, got, tc.least)
		}
	}
}
