package endpoints

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
)

// bodyReader walks a body of JSON once and hands out the raw values, which alias the body. To jsontext.Decoder it adds
// what envelopes need: a depth limit of our own, and an error that sticks: after the first, every method returns zero
// values at once.
//
// Duplicate names inside a payload or a result are none of its business; those of an envelope are for its callers.
type bodyReader struct {
	dec      *jsontext.Decoder
	body     []byte
	maxDepth int
	err      *MalformedError
}

func newBodyReader(body []byte, maxDepth int) *bodyReader {
	// The decoder reads a bytes.Buffer in place and does not write to it.
	dec := jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true))
	return &bodyReader{dec: dec, body: body, maxDepth: maxDepth}
}

func (r *bodyReader) fail(reason, format string, args ...any) {
	if r.err == nil {
		r.err = malformed(reason, format, args...)
	}
}

// envelopeDepth is how deep a value stands at the most: {"items":[{"p":{"accounts":{"d":….
const envelopeDepth = 5

// broken turns an error of the decoder into one of ours. The decoder gives up at a depth of its own, which is far over
// any sensible limit.
func (r *bodyReader) broken(err error) {
	syntax, ok := errors.AsType[*jsontext.SyntacticError](err)
	switch {
	case !ok: // io.EOF
		r.fail(ReasonJSON, "the body is empty")
	case strings.Count(string(syntax.JSONPointer), "/") > r.maxDepth+envelopeDepth:
		r.fail(ReasonDepth, "the value around byte %d is nested deeper than %d", syntax.ByteOffset, r.maxDepth)
	default:
		r.fail(ReasonJSON, "byte %d: %v", syntax.ByteOffset, syntax.Err)
	}
}

// pos returns where the last token or value ended.
func (r *bodyReader) pos() int { return int(r.dec.InputOffset()) }

// open reads the begin of an object or array.
func (r *bodyReader) open(want jsontext.Kind) {
	if got := r.token(); got != want {
		r.unexpected(got, want)
	}
}

// token reads the next token.
func (r *bodyReader) token() jsontext.Kind {
	if r.err != nil {
		return jsontext.KindInvalid
	}
	token, err := r.dec.ReadToken()
	if err != nil {
		r.broken(err)
	}
	return token.Kind()
}

func (r *bodyReader) unexpected(got, want jsontext.Kind) {
	r.fail(ReasonJSON, "around byte %d a JSON %s stands where a JSON %s should", r.pos(), kindName(got), kindName(want))
}

// more reports whether the object or array has another member, and reads its end when it has none.
func (r *bodyReader) more() bool {
	if r.err != nil {
		return false
	}
	switch r.dec.PeekKind() {
	case jsontext.KindEndObject, jsontext.KindEndArray, jsontext.KindInvalid:
		r.token()
		return false
	default:
		return true
	}
}

// raw reads any value.
func (r *bodyReader) raw() []byte {
	if r.err != nil {
		return nil
	}
	v, err := r.dec.ReadValue()
	if err != nil {
		r.broken(err)
		return nil
	}
	// The decoder lends v until the next call only. Its offset says where the same bytes stand in the body.
	end := r.pos()
	return r.body[end-len(v) : end : end]
}

// name reads a member's name, with its quotes. Names of ours have no escapes.
func (r *bodyReader) name() []byte { return r.raw() }

// value reads any value that is nested no deeper than allowed.
func (r *bodyReader) value() []byte {
	v := r.raw()
	if deeper(v, r.maxDepth) {
		r.fail(ReasonDepth, "the value that ends at byte %d is nested deeper than %d", r.pos(), r.maxDepth)
	}
	return v
}

// deeper reports whether a valid value is nested deeper than depth. Most have too few brackets to need a closer look.
func deeper(value []byte, depth int) bool {
	if len(value) <= 2*depth || bytes.Count(value, []byte("["))+bytes.Count(value, []byte("{")) <= depth {
		return false
	}
	dec := jsontext.NewDecoder(bytes.NewBuffer(value), jsontext.AllowDuplicateNames(true))
	for {
		if _, err := dec.ReadToken(); err != nil {
			return false
		}
		if dec.StackDepth() > depth {
			return true
		}
	}
}

// text reads a string and appends it to dst.
func (r *bodyReader) text(dst []byte) []byte {
	raw := r.raw()
	if r.err != nil {
		return dst
	}
	if raw[0] != '"' {
		r.unexpected(jsontext.Value(raw).Kind(), '"')
		return dst
	}
	dst, _ = jsontext.AppendUnquote(dst, raw) // a string that was read is valid
	return dst
}

// ordinal reads a number from 0 to 2³¹-1.
func (r *bodyReader) ordinal() int {
	raw := r.raw()
	if r.err != nil {
		return 0
	}
	n, err := strconv.ParseUint(string(raw), 10, 31)
	if err != nil {
		r.fail(ReasonSlot, "the ordinal that ends at byte %d is not a whole number from 0 to %d", r.pos(), math.MaxInt32)
	}
	return int(n)
}

// boolean reads true or false.
func (r *bodyReader) boolean() bool {
	got := r.token()
	if got != 't' && got != 'f' {
		r.unexpected(got, 't')
	}
	return got == 't'
}

// end fails unless only white space is left.
func (r *bodyReader) end() {
	if r.err != nil {
		return
	}
	if _, err := r.dec.ReadToken(); err == nil {
		r.fail(ReasonJSON, "something follows the object of the body: it ends at byte %d", r.pos())
	} else if !errors.Is(err, io.EOF) {
		r.broken(err)
	}
}
