package wire

import (
	"bytes"
	"errors"
	"sync"

	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go"
)

const (
	// maxWindow is the largest window that a frame may ask for. 8 MiB is what RFC 8878 recommends that every decoder
	// support.
	maxWindow = 8 << 20
	// encoderWindow is the window of our own frames. An encoder keeps twice as much between messages.
	encoderWindow = MaxPooled / 2
)

// Decoders and encoders are costly to make and are reused. Both are stateless between messages.
//
//nolint:gochecknoglobals // pools have no state that anybody could see
var (
	decoders = sync.Pool{New: func() any {
		d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxWindow(maxWindow),
			zstd.WithDecodeAllCapLimit(true))
		if err != nil {
			panic(err) // the options are constants
		}
		return d
	}}
	encoders = sync.Pool{New: func() any {
		e, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest),
			zstd.WithWindowSize(encoderWindow))
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
			return nil, Malformed(ReasonTooLarge, "the body has %d bytes; %d are allowed", len(body), limit)
		}
		return body, nil
	case EncodingZstd:
		return decompress(body, limit)
	default:
		return nil, Malformed(ReasonEncoding, "%s is %.40q; zstd or none is understood", HeaderEncoding, encoding)
	}
}

// decompress decodes all frames in memory: the output is their window, so that nothing of it stays with the decoder.
// The room for the output is what the first frame claims, and grows by a factor when that was too little: left to
// itself the decoder makes room for each of many small frames anew, which is quadratic.
func decompress(body []byte, limit int) ([]byte, error) {
	decoder := decoders.Get().(*zstd.Decoder)
	defer decoders.Put(decoder)
	room, isFrame, err := Claimed(body, limit)
	if err != nil {
		return nil, err
	}
	for ; ; room = min(4*room, limit) {
		out, err := decoder.DecodeAll(body, make([]byte, 0, room))
		switch {
		case err != nil && isFrame && room < limit: // the decoder has several ways to say that it has too little room
		case errors.Is(err, zstd.ErrDecoderSizeExceeded):
			return nil, tooLarge(limit)
		case err != nil:
			return nil, Malformed(ReasonEncoding, "zstd: %v", err)
		case len(out) < cap(out)/2: // it may be kept for long
			return bytes.Clone(out), nil
		default:
			return out, nil
		}
	}
}

// Claimed returns how many bytes the first frame says it holds, or a guess within limit, and whether body begins as a
// frame at all.
func Claimed(body []byte, limit int) (room int, isFrame bool, err error) {
	var h zstd.Header
	isFrame = h.Decode(body) == nil
	switch {
	case !isFrame || !h.HasFCS: // what is wrong with a broken frame is for the decoder to say
		return min(4*len(body)+1, limit), isFrame, nil
	case h.FrameContentSize > uint64(limit):
		return 0, true, tooLarge(limit)
	default:
		return max(int(h.FrameContentSize), 1), true, nil
	}
}

func tooLarge(limit int) error {
	return Malformed(ReasonTooLarge, "the body decompresses to more than %d bytes", limit)
}

// Compress returns body as one zstd frame.
func Compress(body []byte) []byte {
	encoder := encoders.Get().(*zstd.Encoder)
	defer encoders.Put(encoder)
	return encoder.EncodeAll(body, make([]byte, 0, len(body)/4))
}
