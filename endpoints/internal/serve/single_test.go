package serve

import (
	"testing"
	"time"
)

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
