package serve

import (
	"math"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestLatencyBucketsAreNarrow(t *testing.T) {
	t.Parallel()
	last := -1
	for d := time.Duration(0); d < 1<<62; d += 1 + d/37 {
		b := bucketOf(d)
		if b < last || b >= latencyBuckets {
			t.Fatalf("%s is in bucket %d, after %d", d, b, last)
		}
		last = b
		if off := math.Abs(float64(middleOf(b)-d)) / math.Max(float64(d), 1); off > 0.0626 {
			t.Fatalf("%d ns is taken for %d ns", d, middleOf(b))
		}
	}
	if b := bucketOf(math.MaxInt64); b >= latencyBuckets {
		t.Errorf("the longest duration is in bucket %d", b)
	}
	testenv.Same(t, bucketOf(-1), 0, "a negative duration has no bucket")
}

func near(got, want time.Duration) bool { return got > want*9/10 && got < want*11/10 }

func TestLatencyKnowsTheLastMinute(t *testing.T) {
	t.Parallel()
	var l latency
	start := time.Now()
	testenv.Same(t, l.pace(start), (pace{}), "before the first chunk")
	for i := range 30 { // 98 % take 1 ms, 2 % take 1 s
		at := start.Add(time.Duration(i) * time.Second)
		l.add(at, 98, 98, 98*time.Millisecond)
		l.add(at, 2, 2, 2*time.Second)
	}
	p := l.pace(start.Add(30 * time.Second))
	if !near(p.p50, time.Millisecond) || !near(p.p99, time.Second) || p.rate < 95 || p.rate > 105 {
		t.Errorf("after 30 s: %+v", p)
	}
	for i := range 90 { // then all is quicker
		l.add(start.Add(30*time.Second+time.Duration(i)*time.Second), 10, 10, time.Millisecond)
	}
	p = l.pace(start.Add(120 * time.Second))
	if !near(p.p50, 100*time.Microsecond) || !near(p.p99, 100*time.Microsecond) || p.rate < 9 || p.rate > 11 {
		t.Errorf("after two minutes: %+v", p)
	}
	p = l.pace(start.Add(time.Hour))
	testenv.Same(t, p, (pace{}), "after an hour of nothing")
}
