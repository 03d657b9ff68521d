package parquet_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"

	"github.com/tranchehq/tranche/internal/intake"
)

type noted struct {
	Note string `parquet:"note,plain"`
}

// Why parquet-go decodes here, and does not read files: first, a page that says it has some bytes, and inflates to
// more, is inflated as far as it goes. Its codecs cannot be exchanged. Here a file of a few kilobytes has 64 MiB in a
// page; one of some megabytes can have all memory.
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

// Second, it reads other values than are there: of runs of booleans, and of differences that DuckDB writes in 33 bits.
func TestParquetGoReadsOtherValues(t *testing.T) {
	t.Parallel()
	type other struct {
		N int32 `parquet:"n"`
		B *bool `parquet:"b"`
	}
	for name, wrong := range map[string]func(int, other) bool{
		"duckdb-v2": func(i int, r other) bool { return i%3 == 1 && r.N != math.MaxInt32 },
		"arrow-rs":  func(i int, r other) bool { return i%50 < 11 && (r.B == nil || !*r.B) },
	} {
		rows, err := parquet.ReadFile[other](filepath.Join("testdata", name+".parquet"))
		if err != nil {
			t.Errorf("%s: %v: look again whether it can be used", name, err)
		}
		n := 0
		for i, r := range rows {
			if wrong(i, r) {
				n++
			}
		}
		t.Logf("%s: %d of %d rows are wrong", name, n, len(rows))
		if n == 0 {
			t.Errorf("%s: parquet-go reads what is there: look again whether it can be used", name)
		}
	}
}

func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
