package serve

import (
	"math"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

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

func TestParseTTL(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]time.Duration{"5": 5 * time.Second, "90s": 90 * time.Second, "1h": time.Hour,
		"": 0, "never": 0, "-1": 0, "0": 0, "-5s": 0, "x": 0, "99999999999999999999": 0} {
		testenv.Same(t, parseTTL(text), want, "%q", text)
	}
}

func TestRetryDelaysGrow(t *testing.T) {
	t.Parallel()
	for tries, seconds := range map[int]int{0: 1, 1: 1, 2: 2, 3: 4, 4: 8, 5: 16, 6: 30, 7: 30, 1 << 30: 30} {
		about := time.Duration(seconds) * time.Second
		for range 100 {
			if d := retryDelay(tries); d < about*3/4 || d > min(about*5/4, LongestRetry) {
				t.Fatalf("after %d tries %s", tries, d)
			}
		}
	}
}

func TestWatchdogLeavesPullsAlone(t *testing.T) {
	t.Parallel()
	start := time.Now()
	waiting := func(change func(*jetstream.ConsumerInfo)) *jetstream.ConsumerInfo {
		info := &jetstream.ConsumerInfo{NumPending: 3, Config: jetstream.ConsumerConfig{MaxAckPending: 10}}
		change(info)
		return info
	}
	none := func(*jetstream.ConsumerInfo) {}
	for name, tc := range map[string]struct {
		info    *jetstream.ConsumerInfo
		between func(*watchdog)
		bites   bool
	}{
		"stalled":        {waiting(none), func(*watchdog) {}, true},
		"nothing waits":  {waiting(func(i *jetstream.ConsumerInfo) { i.NumPending = 0 }), func(*watchdog) {}, false},
		"paused":         {waiting(func(i *jetstream.ConsumerInfo) { i.Paused = true }), func(*watchdog) {}, false},
		"enough is out":  {waiting(func(i *jetstream.ConsumerInfo) { i.NumAckPending = 10 }), func(*watchdog) {}, false},
		"something came": {waiting(none), func(w *watchdog) { w.came.Add(1) }, false},
		"no pull":        {waiting(none), func(w *watchdog) { w.closed() }, false},
		"a new pull":     {waiting(none), func(w *watchdog) { w.opened() }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWatchdog()
			w.opened()
			w.look(start, tc.info)
			tc.between(w)
			w.look(start.Add(stallTimeout), tc.info)
			testenv.Same(t, len(w.stalled) == 1, tc.bites, "it bites")
		})
	}
}
