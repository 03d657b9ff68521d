// Package parquet reads the rows of a Parquet file as items. Package intake defines what each type becomes.
//
// The file is not trusted, and an invalid file is an error, never a panic. parquet-go decodes the metadata and the
// values, but pages and rows are read here: parquet-go's reader inflates a page without limit, allocates what a
// page claims, and misreads values of some writers (tests have such files). So each page is inflated into a buffer
// of the size in its header, within bounds, and its claims are checked before decoding. One page per column is
// held.
//
// A Reader belongs to one goroutine.
package parquet

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go/encoding/thrift"
	"github.com/parquet-go/parquet-go/format"
	"github.com/pierrec/lz4/v4"

	"github.com/tranchehq/tranche/internal/intake/row"
)

// Bounds of a Parquet file, checked before anything is allocated.
const (
	maxFooterBytes = 16 << 20
	maxColumns     = 4096
	maxStructs     = 1 << 20 // in the footer: some per column of each row group
	structBytes    = 4       // minimum on average: an empty one has one byte and takes a hundred in memory
	maxSchemaDepth = 64
	maxThriftDepth = 32
)

// footer has the needed part of format.FileMetaData, which would take a kilobyte per column of a row group.
type footer struct {
	Schema []format.SchemaElement `thrift:"2"`
	Rows   int64                  `thrift:"3"`
	Groups []rowGroup             `thrift:"4"`
}

type rowGroup struct {
	Chunks []columnChunk `thrift:"1"`
	Rows   int64         `thrift:"3"`
}

type columnChunk struct {
	File string `thrift:"1"`
	Meta struct {
		Codec      format.CompressionCodec `thrift:"4"`
		Values     int64                   `thrift:"5"`
		Compressed int64                   `thrift:"7"`
		Data       int64                   `thrift:"9"`
		Dictionary int64                   `thrift:"11"`
	} `thrift:"3"`
}

func (c *columnChunk) start() int64 {
	if m := &c.Meta; m.Dictionary > 0 && m.Dictionary < m.Data {
		return m.Dictionary
	}
	return c.Meta.Data
}

func bad(format string, args ...any) error {
	return &row.InputError{Reason: "the Parquet file: " + fmt.Sprintf(format, args...)}
}

func readFooter(file io.ReaderAt, length int64) (*footer, error) {
	var tail [8]byte
	if length < int64(len(Magic)+len(tail)) {
		return nil, bad("it is cut short; send the whole file")
	}
	if _, err := file.ReadAt(tail[:], length-int64(len(tail))); err != nil {
		return nil, fmt.Errorf("read the Parquet file: %w", err)
	}
	switch string(tail[4:]) {
	case Magic:
	case "PARE":
		return nil, bad("it is encrypted; send it decrypted")
	default:
		return nil, bad("it does not end like one; it is cut short or damaged, send the whole file")
	}
	size := int64(binary.LittleEndian.Uint32(tail[:4]))
	if size > maxFooterBytes {
		return nil, bad("its metadata takes %d bytes, and at most %d are read; write it with fewer row groups", size,
			maxFooterBytes)
	}
	if size > length-int64(len(Magic)+len(tail)) {
		return nil, bad("its metadata claims more bytes than the file has; it is cut short or damaged")
	}
	data := make([]byte, size)
	if _, err := file.ReadAt(data, length-int64(len(tail))-size); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read the Parquet file: %w", err)
	}
	f := &footer{}
	_, err := decodeThrift(data, f)
	if input, ok := errors.AsType[*row.InputError](err); ok {
		return nil, input
	}
	if err != nil {
		return nil, bad("its metadata is damaged; write it again")
	}
	for i := range f.Groups {
		for _, c := range f.Groups[i].Chunks {
			if c.File != "" {
				return nil, bad("its columns are in other files; write it as one file")
			}
		}
	}
	return f, nil
}

// decodeThrift decodes a struct in Thrift's compact protocol and returns its size in bytes. The decoder allocates
// what lists claim and recurses as deep as the data is nested, so the data is walked first.
func decodeThrift(data []byte, into any) (n int, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = errPage
		}
	}()
	r := (&thrift.CompactProtocol{}).NewReaderFromBytes(data)
	w := walker{r: r, structs: min(maxStructs, 16+len(data)/structBytes)}
	if err := w.walk(thrift.STRUCT, 0); err != nil {
		return 0, err
	}
	n = r.BytesRead()
	r.ResetBytes(data)
	return n, thrift.NewDecoder(r).Decode(into)
}

type walker struct {
	r       thrift.Reader
	structs int // that may still come
}

func (w *walker) walk(kind thrift.Type, depth int) (err error) {
	if depth > maxThriftDepth {
		return errPage
	}
	switch kind {
	case thrift.TRUE, thrift.FALSE, thrift.I8:
		_, err = w.r.ReadInt8()
	case thrift.I16, thrift.I32, thrift.I64:
		_, err = w.r.ReadInt64()
	case thrift.DOUBLE:
		_, err = w.r.ReadFloat64()
	case thrift.BINARY:
		_, err = w.r.ReadBytes()
	case thrift.LIST, thrift.SET:
		l, err := w.r.ReadList()
		for i := int32(0); err == nil && i < l.Size; i++ {
			err = w.walk(l.Type, depth+1)
		}
		return err
	case thrift.MAP:
		m, err := w.r.ReadMap()
		for i := int32(0); err == nil && i < m.Size; i++ {
			err = errors.Join(w.walk(m.Key, depth+1), w.walk(m.Value, depth+1))
		}
		return err
	case thrift.STRUCT:
		return w.fields(depth)
	default:
		return errPage
	}
	return err
}

func (w *walker) fields(depth int) error {
	if w.structs--; w.structs < 0 {
		return bad("its metadata has too many parts; write it with larger row groups, or again if it is damaged")
	}
	for {
		f, err := w.r.ReadField()
		if err != nil || f.Type == thrift.STOP {
			return err
		}
		if f.Type == thrift.TRUE || f.Type == thrift.FALSE {
			continue // the type is the value
		}
		if err := w.walk(f.Type, depth+1); err != nil {
			return err
		}
	}
}

// maxPageBytes is the maximum size of a page, packed or not. Writers make pages of a megabyte.
const maxPageBytes = 64 << 20

const maxPageWindow = 32 << 20

// unpackPage unpacks a page to exactly n bytes, the size in its header. More data is damage; nothing beyond n is
// allocated.
func unpackPage(codec format.CompressionCodec, data []byte, n int) ([]byte, error) {
	switch codec {
	case format.Uncompressed:
		if len(data) != n {
			return nil, errPage
		}
		return data, nil
	case format.Snappy:
		if size, err := snappy.DecodedLen(data); err != nil || size != n {
			return nil, errPage
		}
		return snappy.Decode(make([]byte, n), data)
	case format.Gzip:
		r, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			return nil, errPage
		}
		return exactly(r, n)
	case format.Zstd:
		r, err := zstd.NewReader(bytes.NewReader(data), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxPageWindow))
		if err != nil {
			return nil, errPage
		}
		defer r.Close()
		return exactly(r, n)
	case format.Brotli:
		return exactly(brotli.NewReader(bytes.NewReader(data)), n)
	case format.Lz4:
		return unpackHadoop(data, n)
	case format.Lz4Raw:
		return unpackLZ4(data, n)
	default:
		return nil, bad("it is compressed with %s, which is not read; write it with Snappy, ZSTD, gzip, LZ4_RAW, "+
			"Brotli or none", codec)
	}
}

func unpackLZ4(data []byte, n int) ([]byte, error) {
	out := make([]byte, n)
	if size, err := lz4.UncompressBlock(data, out); err != nil || size != n {
		return nil, errPage
	}
	return out, nil
}

// unpackHadoop unpacks the codec called LZ4 before LZ4_RAW: blocks framed by Hadoop, each after its two sizes, or,
// from writers unaware of that, one bare block.
func unpackHadoop(data []byte, n int) ([]byte, error) {
	out := make([]byte, 0, n)
	for rest := data; ; {
		if len(rest) == 0 && len(out) == n {
			return out, nil
		}
		if len(rest) < 8 {
			break
		}
		size, packed := int(binary.BigEndian.Uint32(rest)), int(binary.BigEndian.Uint32(rest[4:]))
		rest = rest[8:]
		if size > n-len(out) || packed > len(rest) {
			break
		}
		block, err := unpackLZ4(rest[:packed], size)
		if err != nil {
			break
		}
		out, rest = append(out, block...), rest[packed:]
	}
	return unpackLZ4(data, n)
}

func exactly(r io.Reader, n int) ([]byte, error) {
	out := make([]byte, n)
	if _, err := io.ReadFull(r, out); err != nil {
		return nil, errPage
	}
	if more, _ := r.Read(make([]byte, 1)); more > 0 {
		return nil, errPage
	}
	return out, nil
}
