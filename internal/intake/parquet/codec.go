package parquet

import (
	"bytes"
	"encoding/binary"
	"io"

	"github.com/andybalholm/brotli"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
	"github.com/parquet-go/parquet-go/format"
	"github.com/pierrec/lz4/v4"
)

// maxPageBytes is the largest page that is read, packed or not. Writers make pages of a megabyte.
const maxPageBytes = 64 << 20

// maxPageWindow is the most history that a page in zstd may ask for.
const maxPageWindow = 32 << 20

// unpackPage returns what a page holds, which its header says to be n bytes. Data that holds more is damaged: nothing
// is allocated for what it claims beyond n.
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

// unpackLZ4 unpacks one block.
func unpackLZ4(data []byte, n int) ([]byte, error) {
	out := make([]byte, n)
	if size, err := lz4.UncompressBlock(data, out); err != nil || size != n {
		return nil, errPage
	}
	return out, nil
}

// unpackHadoop unpacks the codec that was called LZ4 before LZ4_RAW: blocks, each behind its two sizes, as Hadoop
// frames them; or, of writers that did not know of that, one bare block.
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
