package endpoints

import (
	"bytes"
	"errors"
	"io"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go"
)

// maxWindow bounds what one decoder may allocate for its window, whatever a frame asks for. 8 MiB is what RFC 8878
// recommends that every decoder support.
const maxWindow = 8 << 20

// Decoders and encoders are costly to make and are reused. Both are stateless between messages.
//
//nolint:gochecknoglobals // pools have no state that anybody could see
var (
	decoders = sync.Pool{New: func() any {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow),
			zstd.WithDecoderLowmem(true))
		if err != nil {
			panic(err) // the options are constants
		}
		return d
	}}
	encoders = sync.Pool{New: func() any {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest))
		if err != nil {
			panic(err) // the options are constants
		}
		return e
	}}
)

// decode returns the body as the headers say it is encoded. At most limit bytes ever come out.
func decode(h nats.Header, body []byte, limit int) ([]byte, error) {
	switch encoding := h.Get(HeaderEncoding); encoding {
	case "", "identity":
		if len(body) > limit {
			return nil, malformed(ReasonTooLarge, "the body has %d bytes; %d are allowed", len(body), limit)
		}
		return body, nil
	case encodingZstd:
		return decompress(body, limit)
	default:
		return nil, malformed(ReasonEncoding, "%s is %.40q; zstd or none is understood", HeaderEncoding, encoding)
	}
}

func decompress(body []byte, limit int) ([]byte, error) {
	decoder := decoders.Get().(*zstd.Decoder)
	defer decoders.Put(decoder)
	defer func() { _ = decoder.Reset(nil) }() // let go of the body
	if err := decoder.Reset(bytes.NewReader(body)); err != nil {
		return nil, malformed(ReasonEncoding, "zstd: %v", err)
	}
	var out bytes.Buffer
	out.Grow(min(4*len(body), limit) + bytes.MinRead)
	n, err := io.Copy(&out, io.LimitReader(decoder, int64(limit)+1))
	switch {
	case n > int64(limit), errors.Is(err, zstd.ErrDecoderSizeExceeded):
		return nil, malformed(ReasonTooLarge, "the body decompresses to more than %d bytes", limit)
	case err != nil:
		return nil, malformed(ReasonEncoding, "zstd: %v", err)
	}
	return out.Bytes(), nil
}

// compress returns body as one zstd frame.
func compress(body []byte) []byte {
	encoder := encoders.Get().(*zstd.Encoder)
	defer encoders.Put(encoder)
	return encoder.EncodeAll(body, make([]byte, 0, len(body)/4))
}
