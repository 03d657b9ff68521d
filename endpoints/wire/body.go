package wire

import (
	"bytes"
	"errors"
	"io"
	"math"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/internal/intake/row"
)

// BodyReader walks a body of JSON once and hands out the raw values, which alias the body. To jsontext.Decoder it adds
// what envelopes need: a depth limit of our own, and an error that sticks: after the first, every method returns zero
// values at once.
//
// Duplicate names inside a payload or a result are none of its business; those of an envelope are for its callers.
type BodyReader struct {
	dec      *jsontext.Decoder
	body     []byte
	maxDepth int
	Err      *MalformedError
}

// NewBodyReader reads a body no deeper than maxDepth.
func NewBodyReader(body []byte, maxDepth int) *BodyReader {
	// The decoder reads a bytes.Buffer in place and does not write to it.
	dec := jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true))
	return &BodyReader{dec: dec, body: body, maxDepth: maxDepth}
}

// newReplyReader reads a body of slots. Text that is none is the error of the slot that it stands in, not the body's.
func newReplyReader(body []byte, maxDepth int) *BodyReader {
	r := NewBodyReader(body, maxDepth)
	r.dec.Reset(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true))
	return r
}

// flawOf is what is wrong with a value that was read; names that stand twice are not looked for. Most values have
// nothing of what a closer look is for.
func (r *BodyReader) flawOf(value []byte) *Flaw {
	if !row.Deeper(value, r.maxDepth) && utf8.Valid(value) && !bytes.Contains(value, []byte(`\u`)) {
		return nil
	}
	if flaw := FlawOf(value, r.maxDepth); flaw != nil && flaw.Code != CodeDuplicateName {
		return flaw
	}
	return nil
}

// Fail notes the first thing that is wrong with the body.
func (r *BodyReader) Fail(reason, format string, args ...any) {
	if r.Err == nil {
		r.Err = Malformed(reason, format, args...)
	}
}

// envelopeDepth is how deep a value stands at most: {"items":[{"p":{"accounts":{"d":….
const envelopeDepth = 5

// broken turns an error of the decoder into one of ours. The decoder gives up at a depth of its own, which is far over
// any sensible limit.
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

// Pos returns where the last token or value ended.
func (r *BodyReader) Pos() int { return int(r.dec.InputOffset()) }

// Open reads the begin of an object or array.
func (r *BodyReader) Open(want jsontext.Kind) {
	if got := r.token(); got != want {
		r.unexpected(got, want)
	}
}

// token reads the next token.
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
	r.Fail(ReasonJSON, "around byte %d a JSON %s stands where a JSON %s should", r.Pos(), kindName(got), kindName(want))
}

// More reports whether the object or array has another member, and reads its end when it has none.
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
	// The decoder lends v until the next call only. Its offset says where the same bytes stand in the body.
	end := r.Pos()
	return r.body[end-len(v) : end : end]
}

// Name reads a member's name, with its quotes. Names of ours have no escapes.
func (r *BodyReader) Name() []byte { return r.Raw() }

// value reads any value that is nested no deeper than allowed.
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
	dst, _ = jsontext.AppendUnquote(dst, raw) // a string that was read is valid
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

// boolean reads true or false.
func (r *BodyReader) boolean() bool {
	got := r.token()
	if got != 't' && got != 'f' {
		r.unexpected(got, 't')
	}
	return got == 't'
}

// End fails unless only white space is left.
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

// Request is a list request as it came: payloads are raw and alias the body.
type Request struct {
	Meta
	Params map[string]string // of the run
	Items  []rawItem
}

type rawItem struct {
	Ordinal int
	Key     string
	Payload []byte // nil when the request does not carry it
	Parts   Parts
}

// ParseRequest reads a message from StreamWork. The error is always a *MalformedError. When only the body is at fault,
// or how many endpoints wait for one another, the request is returned with it, without items, so that the fault can be
// reported to whoever asked.
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

// scanParams reads {"year":"2026"}.
func scanParams(in *BodyReader) map[string]string {
	params := map[string]string{}
	in.Open('{')
	for in.More() {
		name, value := string(in.Text(nil)), string(in.Text(nil))
		if _, twice := params[name]; twice {
			in.Fail(ReasonSlot, "the parameter that ends at byte %d, %.80q, stands twice", in.Pos(), name)
		}
		params[name] = value
	}
	return params
}

// scanItems reads the items. Their keys share one string: half the garbage of one each.
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

// scanItem reads {"i":17,"k":"CUST-18","d":…,"p":{…}} and appends the key to keys.
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
