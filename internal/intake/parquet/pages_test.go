package parquet_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"

	"github.com/tranchehq/tranche/internal/intake"
	"github.com/tranchehq/tranche/internal/intake/row"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// page is one of a file that is made by hand.
type page struct {
	header format.PageHeader
	data   []byte
}

// pageV2 is one of so many values, all of the level, and of the data.
func pageV2(values int32, e format.Encoding, level byte, data []byte) page {
	levels := append(binary.AppendUvarint(nil, uint64(values)<<1), level)
	h := format.PageHeader{Type: format.DataPageV2, UncompressedPageSize: int32(len(levels) + len(data))}
	h.CompressedPageSize = h.UncompressedPageSize
	h.DataPageHeaderV2.Valid = true
	h.DataPageHeaderV2.V = format.DataPageHeaderV2{NumValues: values, NumRows: values, Encoding: e,
		DefinitionLevelsByteLength: int32(len(levels))}
	return page{h, append(levels, data...)}
}

func compact(t *testing.T, v any) []byte {
	t.Helper()
	return testenv.Must(thrift.Marshal(&thrift.CompactProtocol{}, v))(t)
}

// handmade is a file of an optional column, called v, and of the numbers of its rows, called id.
func handmade(t *testing.T, kind format.Type, codec format.CompressionCodec, pages ...page) []byte {
	t.Helper()
	values, out := int32(0), []byte("PAR1")
	for _, p := range pages {
		values += p.header.DataPageHeaderV2.V.NumValues
	}
	var chunks []format.ColumnChunk
	add := func(kind format.Type, codec format.CompressionCodec, pages ...page) {
		start := len(out)
		for _, p := range pages {
			out = append(append(out, compact(t, &p.header)...), p.data...)
		}
		chunks = append(chunks, format.ColumnChunk{MetaData: format.ColumnMetaData{Type: kind, Codec: codec,
			NumValues: int64(values), TotalCompressedSize: int64(len(out) - start), DataPageOffset: int64(start)}})
	}
	var ids []byte
	for i := range min(values, 100) {
		ids = binary.LittleEndian.AppendUint32(ids, uint32(i))
	}
	add(format.Int32, format.Uncompressed, pageV2(values, format.Plain, 1, ids))
	add(kind, codec, pages...)
	leaf := func(name string, kind format.Type) format.SchemaElement {
		return format.SchemaElement{Name: name, Type: thrift.New(kind), RepetitionType: thrift.New(format.Optional)}
	}
	return closed(out, compact(t, &format.FileMetaData{NumRows: int64(values),
		Schema: []format.SchemaElement{{Name: "root", NumChildren: thrift.New[int32](2)}, leaf("id", format.Int32),
			leaf("v", kind)},
		RowGroups: []format.RowGroup{{Columns: chunks, NumRows: int64(values)}}}))
}

func closed(out, foot []byte) []byte {
	return append(binary.LittleEndian.AppendUint32(append(out, foot...), uint32(len(foot))), "PAR1"...)
}

func word(n uint32) []byte { return binary.LittleEndian.AppendUint32(nil, n) }

// Pages as other writers have them.
func TestParquetPages(t *testing.T) {
	t.Parallel()
	runs := append(word(4), 11<<1, 1, 3, 0b01010101) // eleven are true, then every other of eight
	text := append(word(1), 'x')
	damaged := pageV2(1, format.Plain, 1, text)
	damaged.header.CRC = 1
	for name, c := range map[string]struct {
		kind  format.Type
		codec format.CompressionCodec
		pages []page
		want  string
	}{
		"booleans in runs": {format.Boolean, format.Uncompressed, []page{pageV2(15, format.RLE, 1, runs)},
			strings.Repeat("true ", 12) + "false true false"},
		"nothing but null, and no bytes": {format.ByteArray, format.Snappy,
			[]page{pageV2(2, format.Plain, 0, nil), pageV2(1, format.DeltaByteArray, 0, nil),
				pageV2(1, format.RLEDictionary, 0, nil), pageV2(1, format.DeltaLengthByteArray, 0, nil)},
			"null null null null null"},
		"booleans that are null": {format.Boolean, format.Zstd,
			[]page{pageV2(2, format.RLE, 0, nil), pageV2(1, format.Plain, 0, nil)}, "null null null"},
		"pages without a value": {format.ByteArray, format.Uncompressed,
			[]page{pageV2(0, format.Plain, 0, nil), pageV2(1, format.Plain, 1, text), pageV2(0, format.Plain, 1, nil)},
			`"eA=="`},
		"another checksum": {format.ByteArray, format.Uncompressed, []page{damaged},
			`the Parquet file: column "v", near row 1: a page is damaged; write the file again`},
		"an encoding of other types": {format.ByteArray, format.Uncompressed,
			[]page{pageV2(1, format.DeltaBinaryPacked, 1, []byte{128, 1, 4, 1, 0})}, `the Parquet file: column "v" is ` +
				"written in the encoding DELTA_BINARY_PACKED, which is not read; write it with a usual one"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := readParquet(handmade(t, c.kind, c.codec, c.pages...), intake.Config{})
			for i := range got {
				got[i] = strings.TrimSuffix(strings.TrimPrefix(got[i], fmt.Sprintf(`%d {"id":%d,"v":`, i, i)), "}")
			}
			if err != nil {
				got = append(got, err.Error())
			}
			testenv.Same(t, strings.Join(got, " "), c.want, "the values")
		})
	}
}

// Differences of INT32 wrap at 32 bits: of values, and of keys.
func TestParquetKeysInDifferences(t *testing.T) {
	t.Parallel()
	type keyed struct {
		ID int32 `parquet:"id,delta"`
	}
	file := writeParquet(t, []keyed{{-2_000_000_000}, {2_000_000_000}, {7}})
	testenv.SameList(t, testenv.Must(readParquet(file, intake.Config{}))(t),
		[]string{`-2000000000 {"id":-2000000000}`, `2000000000 {"id":2000000000}`, `7 {"id":7}`}, "rows")
}

func TestParquetVariantIsRefused(t *testing.T) {
	t.Parallel()
	schema := parquet.NewSchema("x", parquet.Group{"id": parquet.String(),
		"deep": parquet.Group{"doc": parquet.Variant()}})
	var out bytes.Buffer
	w := parquet.NewWriter(&out, schema)
	testenv.Must(w.WriteRows([]parquet.Row{{parquet.ByteArrayValue([]byte{1, 0, 0}).Level(0, 0, 0),
		parquet.ByteArrayValue([]byte{0}).Level(0, 0, 1), parquet.ByteArrayValue([]byte("a")).Level(0, 0, 2)}}))(t)
	testenv.NoError(t, w.Close())
	got, err := readParquet(out.Bytes(), intake.Config{Key: "id"})
	testenv.Says(t, err, `column "deep" is a Variant, which is not read`, "%q", got)
}

// What a small file claims is not allocated.
//
//nolint:paralleltest // what other tests allocate would be counted
func TestParquetClaims(t *testing.T) {
	const many = 1<<31 - 1
	claim := func(n uint64) []byte { return append(binary.AppendUvarint([]byte{128, 1, 4}, n), 0) }
	deltas := func(n []int32) []byte {
		b := testenv.Must(parquet.DeltaBinaryPacked.EncodeInt32(nil, n))(t)
		return b
	}
	prefixes, suffixes := make([]int32, 2000), make([]int32, 2000)
	for i := range prefixes[1:] {
		prefixes[i+1] = 1 << 20
	}
	suffixes[0] = 1 << 20
	bomb := slices.Concat(deltas(prefixes), deltas(suffixes), make([]byte, 1<<20))
	list := func(n uint64) []byte { return binary.AppendUvarint([]byte{4<<4 | 9, 0xFC}, n) } // of row groups
	columns := slices.Concat(binary.AppendUvarint([]byte{2<<4 | 9, 0xFC}, 1<<20-9), make([]byte, 1<<20-9+1))
	for name, data := range map[string][]byte{
		"numbers": handmade(t, format.Int32, format.Uncompressed, pageV2(many, format.DeltaBinaryPacked, 1, claim(many))),
		"lengths": handmade(t, format.ByteArray, format.Uncompressed,
			pageV2(9, format.DeltaLengthByteArray, 1, claim(many))),
		"ends": handmade(t, format.ByteArray, format.Uncompressed,
			pageV2(2, format.DeltaByteArray, 1, append(claim(1), claim(many)...))),
		"beginnings":     handmade(t, format.ByteArray, format.Uncompressed, pageV2(2000, format.DeltaByteArray, 1, bomb)),
		"row groups":     closed([]byte("PAR1"), list(many)),
		"tiny groups":    closed([]byte("PAR1"), append(list(2<<20), make([]byte, 2<<20+1)...)),
		"tiny columns":   closed([]byte("PAR1"), columns),
		"nested structs": closed([]byte("PAR1"), bytes.Repeat([]byte{0x1C}, 4<<20)),
		"nested lists":   closed([]byte("PAR1"), append([]byte{0x19}, bytes.Repeat([]byte{0x19}, 4<<20)...)),
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			size := allocated(func() { _, err = readParquet(data, intake.Config{}) })
			if _, ok := errors.AsType[*row.InputError](err); !ok || size > 16<<20 {
				t.Errorf("%d bytes were allocated for %d, %v", size, len(data), err)
			}
			t.Log(err)
		})
	}
}

func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
