package record_test

import (
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
)

// peakHeap notes the most memory that the heap has in use, until it is asked.
func peakHeap(t *testing.T) func() uint64 {
	t.Helper()
	runtime.GC()
	stop := make(chan struct{})
	var peak uint64
	var sampling sync.WaitGroup
	sampling.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		var m runtime.MemStats
		for {
			runtime.ReadMemStats(&m)
			peak = max(peak, m.HeapInuse)
			select {
			case <-stop:
				return
			case <-tick.C:
			}
		}
	})
	return func() uint64 {
		close(stop)
		sampling.Wait()
		return peak
	}
}

// Replies of a few hundred bytes that hold megabytes each: recording many of them takes the memory of a few. The test
// runs alone, since it measures the memory of all.
func TestRepliesThatDecompressWellTakeBoundedMemory(t *testing.T) {
	const count, bound = 32, 120 << 20
	b := setup(t)
	f, _ := b.Forge(t, 10, 10)
	encoder := testenv.Must(zstd.NewWriter(nil))(t)
	large := `{"slots":[{"i":0,"d":"` + strings.Repeat("a", wire.DefaultMaxBody/2) + `"}]}`
	packed := string(encoder.EncodeAll([]byte(large), nil))
	peak := peakHeap(t)
	for range count {
		msg := f.Reply(workqueue.NewSliceID(), 1, packed)
		msg.Header[wire.HeaderEncoding] = []string{"zstd"}
		f.Publish(t, msg)
	}
	b.WantDrained(t)
	if used := peak(); used > bound {
		t.Errorf("%d replies of %d bytes took %d MiB at once; want at most %d", count, len(packed), used>>20, bound>>20)
	}
	if s := b.Node.Stats(); s.Stale < count || s.Quarantined != 0 { // a slow machine is handed some of them again
		t.Errorf("%d replies were read, %d quarantined; want all %d read", s.Stale, s.Quarantined, count)
	}
}
