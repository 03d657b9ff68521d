package intake

import (
	"bytes"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/klauspost/compress/zstd"
)

// maxPageBytes is the largest page that is read, packed or not. Writers make pages of a megabyte.
const maxPageBytes = 64 << 20

// unpackPage returns what a page holds, which its header says to be n bytes. Data that holds more is damaged: nothing
// is allocated for what it claims beyond n.
func unpackPage(codec int, data []byte, n int) ([]byte, error) {
	switch codec {
	case 0:
		if len(data) != n {
			return nil, errPage
		}
		return data, nil
	case 1:
		if size, err := snappy.DecodedLen(data); err != nil || size != n {
			return nil, errPage
		}
		return snappy.Decode(make([]byte, n), data)
	case 2:
		r, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			return nil, errPage
		}
		return exactly(r, n)
	case 6:
		r, err := zstd.NewReader(bytes.NewReader(data), zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true),
			zstd.WithDecoderMaxWindow(maxWindow))
		if err != nil {
			return nil, errPage
		}
		defer r.Close()
		return exactly(r, n)
	default:
		names := map[int]string{3: "LZO", 4: "Brotli", 5: "LZ4", 7: "LZ4_RAW"}
		return nil, badParquet("it is compressed with %s, which is not read; write it with Snappy, ZSTD, gzip or none",
			names[codec])
	}
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
