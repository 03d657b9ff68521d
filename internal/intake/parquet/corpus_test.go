package parquet_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress"
	"github.com/parquet-go/parquet-go/deprecated"
	"github.com/parquet-go/parquet-go/encoding"

	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// sample is a physical type, the encodings that parquet-go writes it in, and its value in row i: as it is written, and
// as JSON.
type sample struct {
	kind      parquet.Type
	encodings []encoding.Encoding
	value     func(i int) (parquet.Value, string)
}

func samples() map[string]sample {
	plain, delta, split := &parquet.Plain, &parquet.DeltaBinaryPacked, &parquet.ByteStreamSplit
	text := func(b []byte) (parquet.Value, string) {
		return parquet.ByteArrayValue(b), `"` + base64.StdEncoding.EncodeToString(b) + `"`
	}
	fixed := func(length int) func(int) (parquet.Value, string) {
		return func(i int) (parquet.Value, string) {
			b := bytes.Repeat([]byte{byte(i / 3), 7}, length)[:length]
			_, want := text(b)
			return parquet.FixedLenByteArrayValue(b), want
		}
	}
	fixedEncodings := []encoding.Encoding{plain, &parquet.DeltaByteArray, split, &parquet.RLEDictionary}
	return map[string]sample{
		"bool": {parquet.BooleanType, []encoding.Encoding{plain, &parquet.RLE}, func(i int) (parquet.Value, string) {
			b := i%100 < 40 || i%3 == 0
			return parquet.BooleanValue(b), strconv.FormatBool(b)
		}},
		"int32": {parquet.Int32Type, []encoding.Encoding{plain, delta, split, &parquet.RLEDictionary},
			func(i int) (parquet.Value, string) {
				n := []int32{math.MinInt32, math.MaxInt32, int32(i), -1, 2_000_000_000, -2_000_000_000}[i%6]
				return parquet.Int32Value(n), strconv.Itoa(int(n))
			}},
		"int64": {parquet.Int64Type, []encoding.Encoding{plain, delta, split, &parquet.RLEDictionary},
			func(i int) (parquet.Value, string) {
				n := []int64{math.MinInt64, math.MaxInt64, int64(i) << 40, -1}[i%4]
				return parquet.Int64Value(n), strconv.FormatInt(n, 10)
			}},
		"int96": {parquet.Int96Type, []encoding.Encoding{plain, &parquet.RLEDictionary},
			func(i int) (parquet.Value, string) {
				at := time.Date(2026, 1, 2, 0, 0, i%50, 5000, time.UTC)
				nanos := uint64(i%50)*1e9 + 5000
				v := deprecated.Int96{uint32(nanos), uint32(nanos >> 32), uint32(at.Unix()/86_400 + 2_440_588)}
				return parquet.Int96Value(v), `"` + at.Format("2006-01-02T15:04:05.999999999Z") + `"`
			}},
		"float": {parquet.FloatType, []encoding.Encoding{plain, split, &parquet.RLEDictionary},
			func(i int) (parquet.Value, string) {
				return parquet.FloatValue(float32(i%90) / 8), strconv.FormatFloat(float64(i%90)/8, 'g', -1, 32)
			}},
		"double": {parquet.DoubleType, []encoding.Encoding{plain, split, &parquet.RLEDictionary},
			func(i int) (parquet.Value, string) {
				return parquet.DoubleValue(float64(i%90) / 7), strconv.FormatFloat(float64(i%90)/7, 'g', -1, 64)
			}},
		"bytes": {parquet.ByteArrayType, []encoding.Encoding{plain, &parquet.DeltaByteArray,
			&parquet.DeltaLengthByteArray, &parquet.RLEDictionary}, func(i int) (parquet.Value, string) {
			return text([]byte(strings.Repeat("same beginning, ", i%4) + strconv.Itoa(i%70)))
		}},
		"fixed 5":  {parquet.FixedLenByteArrayType(5), fixedEncodings, fixed(5)},
		"fixed 16": {parquet.FixedLenByteArrayType(16), fixedEncodings, fixed(16)},
	}
}

// Every encoding of every physical type, with every codec and in both kinds of pages, gives what was written: also
// what is null, and pages of nothing else.
func TestParquetCorpus(t *testing.T) {
	t.Parallel()
	group, all := parquet.Group{"id": parquet.Leaf(parquet.Int32Type)}, map[string]sample{}
	for name, s := range samples() {
		for _, e := range s.encodings {
			group[name+" "+e.String()] = parquet.Encoded(parquet.Leaf(s.kind), e)
			group[name+" "+e.String()+" or null"] = parquet.Optional(parquet.Encoded(parquet.Leaf(s.kind), e))
			all[name+" "+e.String()], all[name+" "+e.String()+" or null"] = s, s
		}
	}
	schema := parquet.NewSchema("corpus", group)
	rows, want := corpusRows(schema, all, 700)
	for _, codec := range []compress.Codec{&parquet.Uncompressed, &parquet.Snappy, &parquet.Gzip, &parquet.Zstd,
		&parquet.Brotli, &parquet.Lz4Raw} {
		for version := 1; version <= 2; version++ {
			t.Run(fmt.Sprintf("%s v%d", codec, version), func(t *testing.T) {
				t.Parallel()
				var out bytes.Buffer
				w := parquet.NewWriter(&out, schema, parquet.Compression(codec), parquet.DataPageVersion(version),
					parquet.PageBufferSize(400))
				testenv.Must(w.WriteRows(rows))(t)
				testenv.NoError(t, w.Close())
				got := testenv.Must(readParquet(out.Bytes(), intake.Config{Key: "id"}))(t)
				testenv.MustSame(t, len(got), len(want), "rows")
				for i := range got {
					testenv.MustSame(t, got[i], want[i], "row %d", i)
				}
			})
		}
	}
}

func corpusRows(schema *parquet.Schema, all map[string]sample, n int) (rows []parquet.Row, want []string) {
	for i := range n {
		var r parquet.Row
		text := strconv.Itoa(i) + " {"
		for column, path := range schema.Columns() {
			name := path[0]
			value, json, level := parquet.Int32Value(int32(i)), strconv.Itoa(i), 0
			if s, ok := all[name]; ok {
				value, json = s.value(i)
			}
			if strings.HasSuffix(name, "or null") {
				level = 1
				if i%5 == 0 || i >= 200 && i < 500 {
					value, json, level = parquet.NullValue(), "null", 0
				}
			}
			r = append(r, value.Level(0, level, column))
			text += strconv.Quote(name) + ":" + json + ","
		}
		rows, want = append(rows, r), append(want, strings.TrimSuffix(text, ",")+"}")
	}
	return rows, want
}

// Files of other writers give the rows that they were made of: testdata/README.md says how.
func TestParquetOfOtherWriters(t *testing.T) {
	t.Parallel()
	for name, columns := range map[string]string{
		"duckdb-v1": "id n s b f nothing price at list", "duckdb-v2": "id n s b f nothing price at list",
		"arrow-rs": "id n s b f nothing at list", "hyparquet": "id n s b f nothing atZ",
		"parquetjs": "id n s b f nothing atZ list",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := testenv.Must(readParquet(testdata(t, name), intake.Config{}))(t)
			testenv.MustSame(t, len(got), 200, "rows")
			for i := range got {
				testenv.MustSame(t, got[i], otherRow(i, strings.Fields(columns)), "row %d", i)
			}
		})
	}
}

func otherRow(i int, columns []string) string {
	at := time.Date(2026, 1, 2, 3, 4, 5+i, 0, time.UTC)
	values := map[string]string{
		"id": strconv.Itoa(i), "n": []string{"-2147483648", "2147483647", strconv.Itoa(i)}[i%3],
		"s": fmt.Sprintf(`"text %d"`, i%7), "b": strconv.FormatBool(i%50 < 11 || i%2 == 0),
		"f": strconv.FormatFloat(float64(i)/8, 'g', -1, 64), "nothing": "null", "price": fmt.Sprintf(`"%d.00"`, 3*i),
		"at": at.Format(`"2006-01-02T15:04:05"`), "atZ": at.Format(`"2006-01-02T15:04:05Z"`),
		"list": fmt.Sprintf("[%d,%d]", i, i+1),
	}
	if i%4 == 0 {
		values["s"] = "null"
	}
	if i%50 >= 11 && i%4 == 1 {
		values["b"] = "null"
	}
	var parts []string
	for _, c := range columns {
		parts = append(parts, strconv.Quote(strings.TrimSuffix(c, "Z"))+":"+values[c])
	}
	return fmt.Sprintf("%d {%s}", i, strings.Join(parts, ","))
}

func testdata(t *testing.T, name string) []byte {
	t.Helper()
	return testenv.Must(os.ReadFile(filepath.Join("testdata", name+".parquet")))(t)
}
