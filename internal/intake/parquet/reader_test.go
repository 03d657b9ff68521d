package parquet_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/internal/intake/row"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

type movement struct {
	Day    int32   `parquet:"day,date"`
	Amount float64 `parquet:"amount"`
	Note   *string `parquet:"note"`
}

type account struct {
	ID      int64             `parquet:"id,delta"`
	Name    string            `parquet:"name,dict"`
	Code    string            `parquet:"code,delta"`
	Nick    *string           `parquet:"nick,optional"`
	Balance int64             `parquet:"balance,decimal(2:18)"`
	At      time.Time         `parquet:"at,timestamp(microsecond)"`
	Open    bool              `parquet:"open"`
	Rate    float32           `parquet:"rate,split"`
	Small   uint32            `parquet:"small"`
	Raw     []byte            `parquet:"raw"`
	Ref     [16]byte          `parquet:"ref,uuid"`
	Doc     string            `parquet:"doc,json"`
	Tags    []string          `parquet:"tags,list"`
	Moves   []movement        `parquet:"moves,list"`
	Attrs   map[string]string `parquet:"attrs"`
	Plain   []int32           `parquet:"plain"`
}

func accounts(n int) []account {
	all := make([]account, n)
	for i := range all {
		note, nick := "n\"1", fmt.Sprintf("nick-%d", i)
		all[i] = account{ID: int64(i) * 7, Name: []string{"Ann", "Bob"}[i%2],
			Code: fmt.Sprintf("code-%04d", i), Balance: int64(i)*100 - 5,
			At:   time.Date(2026, 1, 2, 3, 4, 5, 6000, time.UTC).Add(time.Duration(i) * time.Second),
			Open: i%3 == 0, Rate: 0.5, Small: 4_000_000_000, Raw: []byte{0, byte(i)}, Ref: [16]byte{15: byte(i)},
			Doc: `{"a": [1, 2]}`, Plain: []int32{}}
		if i%2 == 1 {
			all[i].Nick, all[i].Tags = &nick, []string{"x", ""}
			all[i].Moves = []movement{{Day: 20_000, Amount: 1.5}, {Day: 20_001, Amount: -2, Note: &note}}
			all[i].Attrs, all[i].Plain = map[string]string{"k": "v"}, []int32{1, 2}
		}
	}
	return all
}

func writeParquet[T any](t testing.TB, rows []T, options ...parquet.WriterOption) []byte {
	t.Helper()
	var out bytes.Buffer
	w := parquet.NewGenericWriter[T](&out, options...)
	for len(rows) > 0 {
		n := min(len(rows), 1000)
		testenv.Must(w.Write(rows[:n]))(t)
		rows = rows[n:]
	}
	testenv.NoError(t, w.Close())
	return out.Bytes()
}

// readParquet reads all rows, as "key payload".
func readParquet(data []byte, cfg intake.Config) (all []string, err error) {
	cfg.Spool = &intake.Spool{}
	r, err := intake.Open(bytes.NewReader(data), cfg)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	var item row.Item
	for {
		if err := r.Next(&item); errors.Is(err, io.EOF) {
			return all, nil
		} else if err != nil {
			return all, err
		}
		all = append(all, item.Key+" "+string(item.Payload))
	}
}

func TestParquetRows(t *testing.T) {
	t.Parallel()
	want := `7 {"id":7,"name":"Bob","code":"code-0001","nick":"nick-1","balance":"0.95",` +
		`"at":"2026-01-02T03:04:06.000006Z","open":false,` +
		`"rate":0.5,"small":4000000000,"raw":"AAE=","ref":"00000000-0000-0000-0000-000000000001","doc":{"a":[1,2]},` +
		`"tags":["x",""],"moves":[{"day":"2024-10-04","amount":1.5,"note":null},` +
		`{"day":"2024-10-05","amount":-2,"note":"n\"1"}],` +
		`"attrs":[{"key":"k","value":"v"}],"plain":[1,2]}`
	for name, options := range map[string][]parquet.WriterOption{
		"plain":    nil,
		"snappy":   {parquet.Compression(&parquet.Snappy)},
		"gzip":     {parquet.Compression(&parquet.Gzip), parquet.DataPageVersion(1)},
		"zstd":     {parquet.Compression(&parquet.Zstd), parquet.PageBufferSize(700)},
		"brotli":   {parquet.Compression(&parquet.Brotli)},
		"lz4 raw":  {parquet.Compression(&parquet.Lz4Raw)},
		"groups":   {parquet.MaxRowsPerRowGroup(333), parquet.Compression(&parquet.Snappy)},
		"versions": {parquet.DataPageVersion(1), parquet.PageBufferSize(900)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rows := accounts(2500)
			got := testenv.Must(readParquet(writeParquet(t, rows, options...), intake.Config{}))(t)
			testenv.MustSame(t, len(got), len(rows), "rows")
			testenv.Same(t, got[1], want, "the second row")
			for i, text := range got {
				if !strings.HasPrefix(text, fmt.Sprintf(`%d {"id":%d,`, i*7, i*7)) {
					t.Fatalf("row %d: %s", i+1, text)
				}
			}
			for _, part := range []string{`"nick":null`, `"tags":[],"moves":[],"attrs":[],"plain":[]`, `"balance":"-0.05"`} {
				testenv.Has(t, got[0], part, "the first row")
			}
		})
	}
}

func TestParquetKeys(t *testing.T) {
	t.Parallel()
	rows := accounts(3)
	for key, want := range map[string]string{
		"ref": "00000000-0000-0000-0000-000000000001", "nick": "nick-1", "balance": "0.95",
	} {
		got, err := readParquet(writeParquet(t, rows[1:2]), intake.Config{Key: key})
		if err != nil || len(got) != 1 || !strings.HasPrefix(got[0], want+" ") {
			t.Errorf("%s: %q, %v", key, got, err)
		}
	}
	for key, want := range map[string]string{
		"nick": "row 1, field \"nick\": the key is null", "tags": "cannot be the key", "rate": "cannot be the key",
		"no": `no column "no"`,
	} {
		_, err := readParquet(writeParquet(t, rows), intake.Config{Key: key})
		testenv.Says(t, err, want, "%s", key)
	}
}

// Whatever is wrong with a file, there is an error, and never a panic.
func TestParquetFilesThatAreBroken(t *testing.T) {
	t.Parallel()
	good := writeParquet(t, accounts(500), parquet.Compression(&parquet.Snappy))
	long := bytes.Clone(good)
	binary.LittleEndian.PutUint32(long[len(long)-8:], 1<<31)
	for name, c := range map[string]struct {
		data []byte
		want string
	}{
		"cut":        {good[:len(good)/2], "does not end like one"},
		"tiny":       {[]byte("PAR1"), "cut short"},
		"footer":     {long, "its metadata takes"},
		"no rows":    {writeParquet(t, accounts(0)), "no rows"},
		"not at all": {[]byte("id\n1\n"), ""},
	} {
		format := intake.Recognize
		if name == "not at all" {
			format, c.want = intake.Parquet, "not a Parquet file"
		}
		_, err := readParquet(c.data, intake.Config{Format: format})
		testenv.Says(t, err, c.want, "%s", name)
	}
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 1))
	failed, files := 0, [][]byte{good}
	for _, name := range []string{"duckdb-v1", "duckdb-v2", "arrow-rs", "hyparquet", "parquetjs"} { // without checksums
		files = append(files, testdata(t, name))
	}
	for i := range 1000 {
		bad := bytes.Clone(files[i%len(files)])
		for range 1 + random.IntN(4) {
			at := 4 + random.IntN(len(bad)-12)
			if random.IntN(2) == 0 {
				at = len(bad) - 9 - random.IntN(min(len(bad)-20, 4000))
			}
			bad[at] = byte(random.Uint32())
		}
		if _, err := readParquet(bad, intake.Config{}); err != nil {
			failed++
		}
	}
	if failed < 400 {
		t.Errorf("of 1000 broken files %d were refused; seed %d", failed, seed)
	}
}

type wide struct {
	ID   int64  `parquet:"id,delta"`
	Text string `parquet:"text,dict"`
}

// A megabyte that an index repeats for every row takes no memory, and is abandoned.
func TestParquetBombs(t *testing.T) {
	t.Parallel()
	rows := make([]wide, 2000)
	text := strings.Repeat("x", 60_000)
	for i := range rows {
		rows[i] = wide{int64(i), text}
	}
	data := writeParquet(t, rows, parquet.Compression(&parquet.Zstd))
	if len(data) > 4<<20 {
		t.Fatalf("the bomb has %d bytes", len(data))
	}
	r, err := intake.Open(bytes.NewReader(data), intake.Config{Spool: &intake.Spool{}, MaxRatio: 20})
	testenv.NoError(t, err)
	defer func() { _ = r.Close() }()
	var item row.Item
	n := 0
	for err == nil {
		err = r.Next(&item)
		n++
	}
	t.Logf("%d bytes, %d rows", len(data), n)
	if _, ok := errors.AsType[*row.InputError](err); !ok || !strings.Contains(err.Error(), "times its size") {
		t.Errorf("after %d rows: %v", n, err)
	}
}

type plainRow struct {
	ID   int64   `parquet:"id"`
	Name string  `parquet:"name"`
	Sum  float64 `parquet:"sum"`
}

// Many rows take the memory of a page of each column, and the file that keeps them is gone afterwards.
//
//nolint:paralleltest // other tests' garbage would be counted
func TestParquetMemoryIsFlat(t *testing.T) {
	var out bytes.Buffer
	w := parquet.NewGenericWriter[plainRow](&out, parquet.Compression(&parquet.Snappy),
		parquet.MaxRowsPerRowGroup(125_000))
	rows := make([]plainRow, 10_000)
	const total = 250_000
	for i := 0; i < total; i += len(rows) {
		for j := range rows {
			rows[j] = plainRow{int64(i + j), fmt.Sprintf("customer number %d", i+j), float64(j) * 1.25}
		}
		testenv.Must(w.Write(rows))(t)
	}
	testenv.NoError(t, w.Close())
	path := t.TempDir() + "/x.parquet"
	testenv.NoError(t, os.WriteFile(path, out.Bytes(), 0o600))
	out = bytes.Buffer{} // it is on disk
	file := testenv.Must(os.Open(path))(t)
	defer func() { _ = file.Close() }()
	base, peak := heap(), uint64(0)
	dir := t.TempDir()
	r := testenv.Must(intake.Open(file, intake.Config{Spool: &intake.Spool{Dir: dir}}))(t)
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%d files are to be seen, %v", len(left), err)
	}
	start := time.Now()
	var item row.Item
	var err error
	n := 0
	for ; err == nil; n++ {
		if err = r.Next(&item); n%50_000 == 0 {
			peak = max(peak, heap())
		}
	}
	if !errors.Is(err, io.EOF) || n != total+1 {
		t.Errorf("%d rows, %v", n-1, err)
	}
	t.Logf("%d rows in %s, heap %d MB over the base", n-1, time.Since(start), (int64(peak)-int64(base))>>20)
	if peak > base+16<<20 {
		t.Errorf("the heap grew from %d to %d MB", base>>20, peak>>20)
	}
	testenv.NoError(t, r.Close())
}

func heap() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
