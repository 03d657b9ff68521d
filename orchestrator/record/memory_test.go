package record_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/internal/testing/nodetest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/export"
	"github.com/tranchehq/tranche/workqueue/start"
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
		t.Errorf("%d replies of %d bytes took %d MiB together; want at most %d", count, len(packed), used>>20, bound>>20)
	}
	if s := b.Node.Stats(); s.Stale < count || s.Quarantined != 0 { // a slow machine is handed some of them again
		t.Errorf("%d replies were read, %d quarantined; want all %d read", s.Stale, s.Quarantined, count)
	}
}

var (
	manyLarge = flag.Int("large.items", 110, "items of TestLargeResultsTakeBoundedMemory")
	manyBytes = flag.Int("large.bytes", 2_000_000, "bytes of each of their results")
)

// The results of a run are many times what the heap may hold: of the node, the service and the server together, all of
// which are in this process. They are read again as an export reads them. It runs alone, since it measures the memory
// of all. For ten thousand PDFs of 2 MB, 20 GB in PostgreSQL:
//
//	go test ./orchestrator/record -run TestLargeResultsTakeBoundedMemory -timeout 2h -v -large.items 10000
func TestLargeResultsTakeBoundedMemory(t *testing.T) {
	const bound = 192 << 20 // of which garbage is a little, by the limit
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(bound * 3 / 4))
	b := setup(t)
	serveBytes(t, testenv.Conn(t, b.NS), "statement", func(string) int { return *manyBytes })
	peak := peakHeap(t)
	begun := time.Now()
	req := nodetest.Request("statement")
	req.Steps[0].Chunk, req.Steps[0].Timeout = 20, 10*time.Minute
	id := b.Start(t, req, *manyLarge)
	until := time.Now().Add(time.Hour)
	done := 0
	for done < *manyLarge && time.Now().Before(until) {
		done = b.Number(t, `SELECT coalesce(sum(bit_count(done | failed)), 0) FROM work_block WHERE run_id = $1`, id)
		select {
		case <-time.After(50 * time.Millisecond):
		case <-t.Context().Done():
		}
	}
	if done, failed := b.Outcome(t, id, 1); int(done) != *manyLarge {
		t.Fatalf("done %d, failed %d; want all %d", done, failed, *manyLarge)
	}
	recorded := time.Since(begun)
	want, read := pattern(*manyBytes), 0
	begun = time.Now()
	exported := testenv.Must(export.New(b.Store).Open(t.Context(), export.Request{Run: id,
		States: []workqueue.Outcome{workqueue.OutcomeDone}}))(t)
	err := exported.Each(t.Context(), func(item *export.Item) error {
		r, err := export.New(b.Store).OpenResult(t.Context(), item.Large.ID)
		if err != nil {
			return err
		}
		same := &comparing{want: want}
		_, err = io.Copy(same, r)
		read += same.read
		return err
	})
	if err != nil || read != *manyLarge**manyBytes {
		t.Errorf("read %d bytes, %v; want %d", read, err, *manyLarge**manyBytes)
	}
	used := peak()
	mb := float64(*manyLarge) * float64(*manyBytes) / 1e6
	t.Logf("%d results of %d bytes: recorded in %s (%.0f MB/s, %.0f a second), read in %s (%.0f MB/s); %d MiB of heap",
		*manyLarge, *manyBytes, recorded.Round(time.Millisecond), mb/recorded.Seconds(),
		float64(*manyLarge)/recorded.Seconds(), time.Since(begun).Round(time.Millisecond),
		mb/time.Since(begun).Seconds(), used>>20)
	if used > bound {
		t.Errorf("the heap took %d MiB at its peak; want at most %d", used>>20, bound>>20)
	}
	testenv.Same(t, b.Number(t, `SELECT count(*) FROM large_result WHERE recorded_at IS NULL`), 0, "results are left open")
	b.Check(t)
}

// Items of any size take the memory of a node's buffers, however many or large they are. The largest results come in
// pieces, which no service has as a whole here. It runs alone, since it measures the memory of all.
func TestItemsOfAnySizeTakeBoundedMemory(t *testing.T) {
	const bound = 128 << 20 // of node, service and server together; of which garbage is a little, by the limit
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(bound * 3 / 4))
	for size, count := range map[int]int{1: 100_000, 2_000: 40_000, 64_000: 2_000, 500_000: 300, 8 << 20: 20,
		wire.MaxResult: 4} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			b := setup(t)
			peak := peakHeap(t)
			if size > wire.MaxPiece {
				b.publishPieces(t, size, count)
			} else {
				b.echo(t, size, count)
			}
			used := peak()
			t.Logf("%d items of %d bytes: %d MiB of heap", count, size, used>>20)
			if used > bound {
				t.Errorf("%d items of %d bytes took %d MiB at their peak; want at most %d", count, size, used>>20, bound>>20)
			}
		})
	}
}

// echo completes a run whose payloads and results have that many bytes.
func (b *bundle) echo(t *testing.T, size, count int) {
	t.Helper()
	b.Serve(t, "statement", func(_ context.Context, chunk *nodetest.Chunk) error {
		for _, item := range chunk.Items() {
			item.Reply(nodetest.Statement{Of: item.In.ID})
		}
		return nil
	})
	source := nodetest.Items(count)
	loaded := testenv.Must(b.Node.Runs().Start(t.Context(), nodetest.Patient(), func(item *start.LoadItem) error {
		err := source(item)
		item.Payload = fmt.Appendf(item.Payload[:0], `{"id":"%0*d"}`, size, item.Line)
		return err
	}))(t)
	b.Want(t, loaded.Run, 1, count, 0)
}

// publishPieces completes a run whose results come in pieces.
func (b *bundle) publishPieces(t *testing.T, size, count int) {
	t.Helper()
	f, slices := b.Forge(t, count, count)
	piece, sum := pattern(wire.DefaultPiece), sha256.New()
	whole := wire.Whole{Pieces: size / len(piece), Bytes: int64(size)}
	for range whole.Pieces {
		sum.Write(piece)
	}
	whole.SHA256 = [sha256.Size]byte(sum.Sum(nil))
	for _, whole.Ordinal = range b.Items(t, slices[0].ID) {
		for n := range whole.Pieces {
			msg := f.Reply(slices[0].ID, -1, "")
			msg.Data = piece
			msg.Header[wire.HeaderPiece], msg.Header[wire.HeaderContentType] = []string{whole.Header(n + 1)}, []string{"a/b"}
			nodetest.Until(t, "the stream has room", func() bool {
				_, err := f.JS.PublishMsg(t.Context(), msg)
				return err == nil
			})
		}
	}
	b.Want(t, f.Run, 1, count, 0)
}

// comparing takes what it is written as long as it is what it should be.
type comparing struct {
	want []byte
	read int
}

func (c *comparing) Write(p []byte) (int, error) {
	if c.read+len(p) > len(c.want) || !bytes.Equal(p, c.want[c.read:c.read+len(p)]) {
		return 0, io.ErrUnexpectedEOF
	}
	c.read += len(p)
	return len(p), nil
}
