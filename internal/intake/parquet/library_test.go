package parquet_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"

	"github.com/tranchehq/tranche/internal/intake"
)

type noted struct {
	Note string `parquet:"note,plain"`
}

// Why Parquet is not read by the library that is linked for writing it: a page that says it has some bytes, and
// inflates to more, is inflated as far as it goes. Nobody who checks headers before can see that, and no codec can be
// put in its place. Here a file of a few kilobytes has 64 MiB in a page; one of some megabytes can have all memory.
//
//nolint:paralleltest // what other tests allocate would be counted
func TestParquetGoInflatesWhatAPageDoesNotSay(t *testing.T) {
	const inside, said = 64 << 20, 1 << 10
	rows := make([]noted, inside>>10)
	text := strings.Repeat("x", 1<<10-4) // and its length
	for i := range rows {
		rows[i].Note = text
	}
	data := writeParquet(t, rows, parquet.Compression(&parquet.Zstd), parquet.PageBufferSize(2*inside))
	size := binary.AppendVarint(nil, inside)
	lie := binary.AppendVarint(nil, said)
	for len(lie) < len(size) { // as long as what it replaces
		lie[len(lie)-1] |= 0x80
		lie = append(lie, 0)
	}
	at := bytes.Index(data, size)
	if at < 0 || len(data) > 64<<10 {
		t.Fatalf("the page's size stands at %d of %d bytes", at, len(data))
	}
	copy(data[at:], lie)

	library := allocated(func() {
		r := parquet.NewGenericReader[noted](bytes.NewReader(data))
		n, err := r.Read(rows[:1])
		t.Logf("parquet-go: %d rows, %v", n, err)
		_ = r.Close()
	})
	if library < inside {
		t.Errorf("parquet-go allocates %d bytes for a page that says it has %d: look again whether it can be used",
			library, said)
	}
	var err error
	ours := allocated(func() { _, err = readParquet(data, intake.Config{}) })
	t.Logf("a file of %d bytes: parquet-go allocates %d KiB, this package %d KiB: %v", len(data), library>>10,
		ours>>10, err)
	if err == nil || errors.Is(err, io.EOF) || ours > inside/4 {
		t.Errorf("%d bytes were allocated, %v", ours, err)
	}
}

// allocated is how many bytes f allocates.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
