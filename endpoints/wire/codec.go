package wire

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"reflect"
	"sync"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/klauspost/compress/zstd"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/internal/intake/row"
)

// Binary is a result that is not JSON, such as a PDF. Use it, or a pointer to it, as a handler's Out.
type Binary struct {
	ContentType string // such as application/pdf; default application/octet-stream
	Data        []byte
}

// DecodePayload decodes a payload into input, a pointer to a handler's In; nil leaves it unchanged. A panic in a
// custom decoder becomes an error, so that it fails only the item.
func DecodePayload(payload []byte, input any) (err error) {
	if payload == nil {
		return nil
	}
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf("panic: %v", value)
		}
	}()
	return json.Unmarshal(payload, input)
}

// EncodePayload appends a payload as deterministic JSON, so that repeated requests have equal bytes. A panic in a
// custom encoder becomes an error. After an error, buf holds partial output.
func EncodePayload(buf *bytes.Buffer, value any) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	from := buf.Len()
	if err := json.MarshalWrite(buf, value, json.Deterministic(true)); err != nil {
		return err
	}
	return CheckDepth(buf.Bytes()[from:])
}

// AppendResult appends the members of a slot for a result: "d", or "t" and "b". result points to a handler's Out. A
// panic in a custom encoder becomes an error. After an error, buf holds partial output.
func AppendResult(buf *bytes.Buffer, result any) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf("panic: %v", value)
		}
	}()
	if b := AsBinary(result); b != nil {
		kind, err := b.TypeOf()
		if err == nil {
			AppendBytes(buf, kind, b.Data)
		}
		return err
	}
	buf.WriteString(`"d":`)
	from := buf.Len()
	if err := json.MarshalWrite(buf, result); err != nil {
		return err
	}
	return CheckDepth(buf.Bytes()[from:])
}

// CheckDepth rejects valid JSON nested deeper than readers accept, so that it fails its item, not the message.
func CheckDepth(value []byte) error {
	if row.Deeper(value, DefaultMaxDepth) {
		return errTooDeep
	}
	return nil
}

var errTooDeep = fmt.Errorf("it is nested over %d deep", DefaultMaxDepth)

// Unwritten returns the error of an item whose result AppendResult rejected.
func Unwritten(err error) *SlotError {
	code := CodeBadResult
	if errors.Is(err, errTooDeep) {
		code = CodeTooDeep
	}
	return NewSlotError(code, fmt.Sprintf("the result cannot be written: %v", err), false)
}

// AsBinary returns the Binary that result, a pointer to a handler's Out, holds, or nil.
func AsBinary(result any) *Binary {
	switch r := result.(type) {
	case *Binary:
		return r
	case **Binary:
		return *r
	case *any:
		switch v := (*r).(type) {
		case Binary:
			return &v
		case *Binary:
			return v
		}
	}
	return nil
}

// TypeOf returns the content type, or an error if it is invalid.
func (b *Binary) TypeOf() (string, error) {
	if b.ContentType == "" {
		return DefaultBinaryType, nil
	}
	if !ValidContentType(b.ContentType) {
		return "", fmt.Errorf("content type %.80q is not one", b.ContentType)
	}
	return b.ContentType, nil
}

// AppendBytes appends the members of a slot for a binary result.
func AppendBytes(buf *bytes.Buffer, contentType string, data []byte) {
	buf.Grow(base64.StdEncoding.EncodedLen(len(data)) + len(contentType) + len(`"t":"","b":""}`))
	buf.Write(appendEncoded(buf.AvailableBuffer(), contentType, data))
}

// appendEncoded appends "t":"image/png","b":"…".
func appendEncoded(b []byte, contentType string, data []byte) []byte {
	b = append(b, `"t":`...)
	b = AppendString(b, contentType)
	b = append(b, `,"b":"`...)
	b = base64.StdEncoding.AppendEncode(b, data)
	return append(b, '"')
}

// PayloadError reports where a payload does not fit the handler's input. It names the position and types, never the
// value, which must not reach messages and logs.
func PayloadError(err error, input reflect.Type) *SlotError {
	var semantic *json.SemanticError
	var syntactic *jsontext.SyntacticError
	var detail string
	switch {
	case errors.As(err, &semantic):
		detail = fmt.Sprintf("at %s", place(semantic.JSONPointer))
		if kind := semantic.JSONKind; kind != 0 {
			detail += fmt.Sprintf(": a JSON %s", kindName(kind))
		}
		if semantic.GoType != nil {
			detail += fmt.Sprintf(" does not fit Go type %s", semantic.GoType)
		}
	case errors.As(err, &syntactic):
		detail = fmt.Sprintf("at %s: %v", place(syntactic.JSONPointer), syntactic.Err)
	default:
		detail = "its own decoder refused it"
	}
	return NewSlotError(CodeBadPayload, fmt.Sprintf("the payload does not fit %v %s", input, detail), false)
}

func place(pointer jsontext.Pointer) string {
	if pointer == "" {
		return "its root"
	}
	return Cut(string(pointer), 200)
}

func kindName(kind jsontext.Kind) string {
	switch kind {
	case 'n':
		return "null"
	case 't', 'f':
		return "boolean"
	case '"':
		return "string"
	case '0':
		return "number"
	case '{':
		return "object"
	default:
		return "array"
	}
}

const (
	// maxWindow is the largest window accepted in a frame. RFC 8878 recommends that all decoders support 8 MiB.
	maxWindow = 8 << 20
	// encoderWindow is the window of our frames. An encoder keeps twice that between messages.
	encoderWindow = MaxPooled / 2
)

// Decoders and encoders are expensive to create and stateless between messages, so they are pooled.
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

// decode returns the body decoded as its headers say, at most limit bytes.
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

// decompress decodes all frames into one buffer, which serves as their window. The buffer has the size claimed by the
// first frame and grows by a factor: the decoder itself would reallocate for each small frame, which is quadratic.
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
		case err != nil && isFrame && room < limit: // the decoder has several errors for a short buffer
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

// Claimed returns the size claimed by the first frame, or an estimate within limit, and whether body is a frame.
func Claimed(body []byte, limit int) (room int, isFrame bool, err error) {
	var h zstd.Header
	isFrame = h.Decode(body) == nil
	switch {
	case !isFrame || !h.HasFCS: // the decoder reports broken frames
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
