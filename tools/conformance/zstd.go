package conformance

import (
	"bytes"
	"io"

	"github.com/klauspost/compress/zstd"
)

// compress returns data as one frame that says how much it holds.
func compress(data []byte) []byte {
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		panic(err) // the options are constants
	}
	defer func() { _ = encoder.Close() }() // it writes nowhere
	return encoder.EncodeAll(data, nil)
}

// compressStream returns data as one frame that does not say how much it holds, as encoders of streams write it.
func compressStream(data []byte) []byte {
	var out bytes.Buffer
	encoder, err := zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(1<<16),
		zstd.WithEncoderLevel(zstd.SpeedFastest))
	if err != nil {
		panic(err) // the options are constants
	}
	half := len(data) / 2
	for _, part := range [][]byte{data[:half], data[half:]} {
		_, _ = encoder.Write(part) // a buffer takes everything
		_ = encoder.Flush()
	}
	_ = encoder.Close()
	return out.Bytes()
}

// decompress returns what it can.
func decompress(data []byte) []byte {
	decoder, err := zstd.NewReader(bytes.NewReader(data), zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil
	}
	defer decoder.Close()
	out, _ := io.ReadAll(io.LimitReader(decoder, 64<<20)) // what cannot be read is missing in the answer, and told so
	return out
}
