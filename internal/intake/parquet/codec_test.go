package parquet_test

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/pierrec/lz4/v4"

	"github.com/tranchehq/tranche/internal/intake/parquet"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// The codec that was called LZ4 before LZ4_RAW is read as Hadoop writes it, and as others understood it. No library
// that is here writes it.
func TestParquetLZ4OfBefore(t *testing.T) {
	t.Parallel()
	text := []byte(strings.Repeat("statement ", 1000))
	pack := func(text []byte) []byte {
		out := make([]byte, lz4.CompressBlockBound(len(text)))
		n := testenv.Must(lz4.CompressBlock(text, out, nil))(t)
		return out[:n]
	}
	frame := func(text []byte) (out []byte) {
		packed := pack(text)
		out = binary.BigEndian.AppendUint32(out, uint32(len(text)))
		return append(binary.BigEndian.AppendUint32(out, uint32(len(packed))), packed...)
	}
	const codec = 5
	for name, data := range map[string][]byte{
		"one block": frame(text), "two blocks": append(frame(text[:4000]), frame(text[4000:])...), "bare": pack(text),
	} {
		if got, err := parquet.UnpackPage(codec, data, len(text)); err != nil || !bytes.Equal(got, text) {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
		for _, n := range []int{0, len(text) - 1, len(text) + 1} {
			got, err := parquet.UnpackPage(codec, data, n)
			testenv.Fails(t, err, "%s: %d bytes of %d", name, len(got), n)
		}
	}
}
