package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/internal/intake/row"
)

// BodyReader reads a JSON body once and returns raw values that alias it. Unlike jsontext.Decoder it limits depth,
// and its first error sticks: after it, all methods return zero values. It does not check for duplicate names;
// callers check those of the envelope with Once.
type BodyReader struct {
	dec      *jsontext.Decoder
	body     []byte
	maxDepth int
	Err      *MalformedError
}

// NewBodyReader returns a reader of values nested no deeper than maxDepth.
func NewBodyReader(body []byte, maxDepth int) *BodyReader {
	// The decoder reads a bytes.Buffer in place, without writing to it.
	dec := jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true))
	return &BodyReader{dec: dec, body: body, maxDepth: maxDepth}
}

// newReplyReader returns a reader of slots. Invalid UTF-8 fails its slot, not the body.
func newReplyReader(body []byte, maxDepth int) *BodyReader {
	r := NewBodyReader(body, maxDepth)
	r.dec.Reset(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	return r
}

// flawOf returns what is wrong with a value, except duplicate names. A fast check passes most values.
func (r *BodyReader) flawOf(value []byte) *Flaw {
	if !row.Deeper(value, r.maxDepth) && utf8.Valid(value) && !bytes.Contains(value, []byte(`\u`)) {
		return nil
	}
	if flaw := FlawOf(value, r.maxDepth); flaw != nil && flaw.Code != CodeDuplicateName {
		return flaw
	}
	return nil
}

// Fail records the first error of the body.
func (r *BodyReader) Fail(reason, format string, args ...any) {
	if r.Err == nil {
		r.Err = Malformed(reason, format, args...)
	}
}

// envelopeDepth is the depth of the deepest value: {"items":[{"p":{"accounts":{"d":….
const envelopeDepth = 5

// broken converts a decoder error. The decoder's own depth limit is far above any sensible one.
func (r *BodyReader) broken(err error) {
	syntax, ok := errors.AsType[*jsontext.SyntacticError](err)
	switch {
	case !ok: // io.EOF
		r.Fail(ReasonJSON, "the body is empty")
	case strings.Count(string(syntax.JSONPointer), "/") > r.maxDepth+envelopeDepth:
		r.Fail(ReasonDepth, "the value around byte %d is nested deeper than %d", syntax.ByteOffset, r.maxDepth)
	default:
		r.Fail(ReasonJSON, "byte %d: %v", syntax.ByteOffset, syntax.Err)
	}
}

// Pos returns the end of the last token or value.
func (r *BodyReader) Pos() int { return int(r.dec.InputOffset()) }

// Open reads the start of an object or array.
func (r *BodyReader) Open(want jsontext.Kind) {
	if got := r.token(); got != want {
		r.unexpected(got, want)
	}
}

func (r *BodyReader) token() jsontext.Kind {
	if r.Err != nil {
		return jsontext.KindInvalid
	}
	token, err := r.dec.ReadToken()
	if err != nil {
		r.broken(err)
	}
	return token.Kind()
}

func (r *BodyReader) unexpected(got, want jsontext.Kind) {
	r.Fail(ReasonJSON, "around byte %d there is a JSON %s; want a JSON %s", r.Pos(), kindName(got), kindName(want))
}

// More reports whether the object or array has another member, and otherwise reads its end.
func (r *BodyReader) More() bool {
	if r.Err != nil {
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

// Raw reads any value.
func (r *BodyReader) Raw() []byte {
	if r.Err != nil {
		return nil
	}
	v, err := r.dec.ReadValue()
	if err != nil {
		r.broken(err)
		return nil
	}
	// The decoder's v is valid until the next call only; its offset locates the same bytes in body.
	end := r.Pos()
	return r.body[end-len(v) : end : end]
}

// Name reads a member's name with its quotes. Protocol names have no escapes.
func (r *BodyReader) Name() []byte { return r.Raw() }

// value reads a value within the depth limit.
func (r *BodyReader) value() []byte {
	v := r.Raw()
	if row.Deeper(v, r.maxDepth) {
		r.Fail(ReasonDepth, "the value that ends at byte %d is nested deeper than %d", r.Pos(), r.maxDepth)
	}
	return v
}

// Text reads a string and appends it to dst.
func (r *BodyReader) Text(dst []byte) []byte {
	raw := r.Raw()
	if r.Err != nil {
		return dst
	}
	if raw[0] != '"' {
		r.unexpected(jsontext.Value(raw).Kind(), '"')
		return dst
	}
	dst, _ = jsontext.AppendUnquote(dst, raw) // a parsed string is valid
	return dst
}

// Ordinal reads a number from 0 to 2³¹-1.
func (r *BodyReader) Ordinal() int {
	raw := r.Raw()
	if r.Err != nil {
		return 0
	}
	n, err := strconv.ParseUint(string(raw), 10, 31)
	if err != nil {
		r.Fail(ReasonSlot, "the ordinal that ends at byte %d is not a whole number from 0 to %d", r.Pos(), math.MaxInt32)
	}
	return int(n)
}

func (r *BodyReader) boolean() bool {
	got := r.token()
	if got != 't' && got != 'f' {
		r.unexpected(got, 't')
	}
	return got == 't'
}

// End fails if anything but white space remains.
func (r *BodyReader) End() {
	if r.Err != nil {
		return
	}
	if _, err := r.dec.ReadToken(); err == nil {
		r.Fail(ReasonJSON, "something follows the object of the body: it ends at byte %d", r.Pos())
	} else if !errors.Is(err, io.EOF) {
		r.broken(err)
	}
}

// Request is a parsed list request. Its payloads are raw and alias the body.
type Request struct {
	Meta
	Params map[string]string // of the run
	Items  []rawItem
}

type rawItem struct {
	Ordinal int
	Key     string
	Payload []byte // nil if the request has none
	Parts   Parts
}

// ParseRequest parses a message from StreamWork. The error is always a *MalformedError. If only the body or the depth
// of the stack is invalid, the request is returned too, without items, so that the requester can be answered.
func ParseRequest(h nats.Header, body []byte, limits Limits) (*Request, error) {
	limits = limits.WithDefaults()
	meta, err := ParseMeta(h)
	if relayed := notRelayed(h); relayed != nil {
		err = relayed
	}
	if bad, ok := errors.AsType[*MalformedError](err); ok && bad.Reason == ReasonStack {
		return &Request{Meta: meta, Params: map[string]string{}}, About(meta, err)
	}
	if err != nil {
		return nil, About(meta, err)
	}
	r := &Request{Meta: meta, Params: map[string]string{}}
	if body, err = decode(h, body, limits.MaxBody); err != nil {
		return r, About(meta, err)
	}
	in := NewBodyReader(body, limits.MaxDepth)
	r.scan(in, limits.MaxSlots)
	if in.Err != nil {
		r.Items = nil
		return r, About(meta, in.Err)
	}
	return r, nil
}

func (r *Request) scan(in *BodyReader, maxItems int) {
	var seenItems, seenParams bool
	in.Open('{')
	for in.More() {
		switch string(in.Name()) {
		case `"items"`:
			Once(in, &seenItems, "items")
			r.scanItems(in, maxItems)
		case `"params"`:
			Once(in, &seenParams, "params")
			r.Params = scanParams(in)
		default:
			in.value()
		}
	}
	in.End()
	if len(r.Items) == 0 {
		in.Fail(ReasonSlot, `the body has no "items"`)
	}
}

// scanParams parses {"year":"2026"}.
func scanParams(in *BodyReader) map[string]string {
	params := map[string]string{}
	in.Open('{')
	for in.More() {
		name, value := string(in.Text(nil)), string(in.Text(nil))
		if _, twice := params[name]; twice {
			in.Fail(ReasonSlot, "the parameter that ends at byte %d, %.80q, appears twice", in.Pos(), name)
		}
		params[name] = value
	}
	return params
}

// scanItems parses the items. Their keys share one string, which halves the garbage.
func (r *Request) scanItems(in *BodyReader, maxItems int) {
	var keys []byte
	var ends []int
	names := map[string]string{} // of parts
	in.Open('[')
	for in.More() {
		if len(r.Items) == maxItems {
			in.Fail(ReasonTooMany, "more than %d items", maxItems)
			return
		}
		start := in.Pos()
		var item rawItem
		item, keys = scanItem(in, keys, names)
		if in.Err != nil {
			return
		}
		if r.Items == nil {
			room := min((len(in.body)-start)/(in.Pos()-start)+2, maxItems)
			r.Items, ends = make([]rawItem, 0, room), make([]int, 0, room)
		}
		r.Items = append(r.Items, item)
		ends = append(ends, len(keys))
	}
	all, start := string(keys), 0
	for i, end := range ends {
		r.Items[i].Key = all[start:end]
		start = end
	}
}

// scanItem parses {"i":17,"k":"CUST-18","d":…,"p":{…}} and appends the key to keys.
func scanItem(in *BodyReader, keys []byte, names map[string]string) (item rawItem, grown []byte) {
	var seenI, seenK, seenD, seenP bool
	in.Open('{')
	for in.More() {
		switch string(in.Name()) {
		case `"i"`:
			Once(in, &seenI, "i")
			item.Ordinal = in.Ordinal()
		case `"k"`:
			Once(in, &seenK, "k")
			keys = in.Text(keys)
		case `"d"`:
			Once(in, &seenD, "d")
			item.Payload = in.value()
		case `"p"`:
			Once(in, &seenP, "p")
			item.Parts = scanParts(in, names)
		default:
			in.value()
		}
	}
	if in.Err == nil && (!seenI || !seenK || !seenD && !seenP) {
		in.Fail(ReasonSlot, `the item that ends at byte %d must have "i", "k", and "d" or "p"`, in.Pos())
	}
	return item, keys
}

// Codes of results whose JSON is invalid or ambiguous.
const (
	CodeTooDeep       = "nested_too_deep" // deeper than readers accept; permanent
	CodeNotUTF8       = "not_utf8"        // not UTF-8; permanent
	CodeDuplicateName = "duplicate_name"  // a name occurs twice in one object; permanent
	CodeLoneSurrogate = "lone_surrogate"  // an escape is half of a surrogate pair; permanent
)

// Flaw is why a value is not JSON that all readers understand alike.
type Flaw struct {
	Code  string
	Words string // the problem, to follow "JSON"
	At    string // JSON pointer, if known
}

// FlawOf returns what is wrong with a value, or nil.
func FlawOf(value []byte, maxDepth int) *Flaw {
	valid := func(opts ...jsontext.Options) bool { return jsontext.Value(value).IsValid(opts...) }
	names, text := jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)
	switch {
	case row.Deeper(value, maxDepth):
		return &Flaw{Code: CodeTooDeep, Words: fmt.Sprintf("that is nested over %d deep", maxDepth)}
	case valid():
		return nil
	case !utf8.Valid(value):
		return &Flaw{Code: CodeNotUTF8, Words: "that is not UTF-8"}
	case !valid(names, text):
		return &Flaw{Code: CodeBadResult, Words: "that is none"}
	case !valid(names):
		return &Flaw{CodeLoneSurrogate, `in which an escape is half of a pair, like \ud83d, and so no character`,
			where(value, names)}
	default:
		return &Flaw{CodeDuplicateName, "in which a name appears twice in one object", where(value)}
	}
}

// where returns the JSON pointer at which the decoder stops.
func where(value []byte, opts ...jsontext.Options) string {
	_, err := jsontext.NewDecoder(bytes.NewBuffer(value), opts...).ReadValue()
	if syntax, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		return string(syntax.JSONPointer)
	}
	return ""
}

// Slot returns the error of the item with that result.
func (f *Flaw) Slot() *SlotError {
	words := "the result is JSON " + f.Words
	if f.Code == CodeBadResult {
		words = "the result is not JSON; set its content type if it is not meant to be"
	}
	if f.At != "" {
		words += ": " + f.At
	}
	return NewSlotError(f.Code, words, false)
}
