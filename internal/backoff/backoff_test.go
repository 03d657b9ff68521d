package backoff_test

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tranchehq/tranche/internal/backoff"
)

func TestDoubling(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ first, longest time.Duration }{
		{10, 70}, {10, 80}, {10, 10}, {20, 10}, {10, 1}, {3, 1000}, {1, math.MaxInt64},
	} {
		d := backoff.Exponential{First: test.first, Longest: test.longest}
		want := min(test.first, test.longest)
		for n := 1; n < 80; n++ {
			got := d.Next()
			if got != want || got != backoff.Nth(test.first, test.longest, n) {
				t.Fatalf("%d to %d: pause %d is %d, want %d", test.first, test.longest, n, got, want)
			}
			if want > test.longest-want {
				want = test.longest
			} else {
				want *= 2
			}
		}
		d.Reset()
		if got := d.Next(); got != min(test.first, test.longest) {
			t.Errorf("%d to %d: begins again with %d", test.first, test.longest, got)
		}
	}
}

func TestNthTakesAnyNumber(t *testing.T) {
	t.Parallel()
	var got []time.Duration
	for _, n := range []int{-1, 0, 1, 2, 3, 4, math.MaxInt} {
		got = append(got, backoff.Nth(time.Second, 5*time.Second, n)/time.Second)
	}
	if want := []time.Duration{1, 1, 1, 2, 4, 5, 5}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestWaitEnds(t *testing.T) {
	t.Parallel()
	d := backoff.Exponential{First: time.Nanosecond, Longest: time.Hour}
	if err := d.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := backoff.Sleep(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("after the context's end: %v", err)
	}
}

// A server that answers late is waited for, and one that lost the question is asked again soon.
func TestTimeout(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bound := backoff.Timeout{First: time.Second, Longest: 10 * time.Second}
		attempt := func(answer time.Duration) (answered bool, took time.Duration) {
			begin := time.Now()
			ctx, end := bound.Context(t.Context())
			answered = backoff.Sleep(ctx, answer) == nil
			end()
			return answered, time.Since(begin)
		}
		for _, late := range []time.Duration{0, 3 * time.Second, 9 * time.Second} {
			attempt(0)
			begin := time.Now()
			for answered := false; !answered; {
				silent := time.Since(begin)
				var took time.Duration
				if answered, took = attempt(late); !answered && took > max(time.Second, silent/4) {
					t.Errorf("an attempt took %s, after a silence of %s", took, silent)
				}
			}
			if took := time.Since(begin); took > 6*late {
				t.Errorf("answers take %s, and the first came after %s", late, took)
			}
			if answered, took := attempt(late + time.Millisecond); !answered {
				t.Errorf("answers take %s, and the next attempt took %s", late, took)
			}
		}
		if _, took := attempt(time.Hour); took != 10*time.Second {
			t.Errorf("an attempt took %s; want at most 10s", took)
		}
	})
}

// What continues for an hour is reported immediately, and after 1, 3, 7, 15, 30 and 45 minutes.
func TestSeldom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := backoff.Seldom{First: time.Minute, Longest: 15 * time.Minute}
		var told []int
		for minute := range 60 {
			if s.Now() {
				told = append(told, minute)
			}
			time.Sleep(time.Minute) //nolint:forbidigo // the bubble's
		}
		if want := []int{0, 1, 3, 7, 15, 30, 45}; !slices.Equal(told, want) {
			t.Errorf("told in minutes %v, want %v", told, want)
		}
		if s.Reset(); !s.Now() || s.Now() {
			t.Error("what ended and began again is to be told once")
		}
	})
}
