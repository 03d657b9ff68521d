package orchestrator

import (
	"testing"
	"time"
)

// Pieces take neither too long nor become so small that a deletion takes for ever.
func TestTheNextPieceIsAsLargeAsTheLastOneAllows(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		span int64
		took time.Duration
		want int64
	}{
		{1, 60 * time.Millisecond, 2}, // after time-outs
		{64, 99 * time.Millisecond, 128},
		{64, 100 * time.Millisecond, 64},
		{64, time.Second, 64},
		{1, 20 * time.Millisecond, 2},
		{leastSpan, 60 * time.Millisecond, leastSpan},
		{leastSpan, time.Second, leastSpan},
		{firstSpan, 60 * time.Millisecond, firstSpan},
		{firstSpan, 20 * time.Millisecond, 2 * firstSpan},
		{firstSpan, time.Second, firstSpan / 2},
		{mostSpan, time.Millisecond, mostSpan},
	} {
		if got := nextSpan(tc.span, tc.took); got != tc.want {
			t.Errorf("after %d in %s come %d; want %d", tc.span, tc.took, got, tc.want)
		}
	}
}
