package record_test

import (
	"bytes"
	"context"
	"crypto/sha256"
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

// The results of a run are many times what the heap may hold: of the node, the service and the server together, all of
// which are in this process. They are read again as an export reads them. It runs alone, since it measures the memory
// of all.
func TestLargeResultsTakeBoundedMemory(t *testing.T) {
	const items, size, bound = 110, 2_000_000, 192 << 20 // of which garbage is a little, by the limit
	defer debug.SetMemoryLimit(debug.SetMemoryLimit(bound * 3 / 4))
	b := setup(t)
	serveBytes(t, testenv.Conn(t, b.NS), "statement", func(string) int { return size })
	peak := peakHeap(t)
	req := nodetest.Request("statement")
	req.Steps[0].Chunk, req.Steps[0].Timeout = 20, 10*time.Minute
	id := b.Start(t, req, items)
	b.Want(t, id, 1, items, 0)
	want, read := pattern(size), 0
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
	if err != nil || read != items*size {
		t.Errorf("read %d bytes, %v; want %d", read, err, items*size)
	}
	if used := peak(); used > bound {
		t.Errorf("the heap took %d MiB at its peak; want at most %d", used>>20, bound>>20)
	}
	testenv.Same(t, b.Number(t, `SELECT count(*) FROM large_result WHERE recorded_at IS NULL`), 0, "results are left open")
	b.Check(t)
}

// Items of any size take the memory of a node's buffers, however many or large they are. The largest results come in
// pieces, which no service has entirely here. It runs alone, since it measures the memory of all.
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
			if used := peak(); used > bound {
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
