package wire

import (
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/bitfield"
)

const (
	requestOpen   = `{"items":[`
	requestParams = `{"params":`
	requestItems  = `,"items":[`
	requestClose  = `]}`
	// headerReserve is left free in every message for headers that the publisher adds: Nats-TTL, traceparent, the
	// expected stream.
	headerReserve = 512
)

// RequestBuilder builds a list request, {"params":{…},"items":[{"i":17,"k":"CUST-18","d":{…},"p":{…}}]}, by appending
// raw JSON. It is not safe for concurrent use.
type RequestBuilder struct {
	endpoint string
	Meta     Meta
	header   nats.Header
	limit    int
	Body     []byte
	items    int
	parts    Parts // of the next item
}

// NewRequestBuilder starts a request. maxPayload is what the server takes in one message, headers counted in:
// nc.MaxPayload(). A body has at most DefaultMaxBody bytes anyway: a reader takes no more.
func NewRequestBuilder(endpoint string, meta Meta, maxPayload int) *RequestBuilder {
	b := &RequestBuilder{}
	b.Reset(endpoint, meta, maxPayload)
	return b
}

// Reset starts another request in the same buffer. The message of the request before must no longer be needed: its
// publish has been acknowledged, or given up.
func (b *RequestBuilder) Reset(endpoint string, meta Meta, maxPayload int) {
	b.endpoint, b.Meta, b.items, b.parts = endpoint, meta, 0, b.parts[:0]
	b.header = meta.Request()
	b.header[HeaderMsgID] = []string{meta.Slice.String()}
	b.limit = min(maxPayload-HeaderSize(b.header)-headerReserve, DefaultMaxBody) - len(requestClose)
	b.Body = append(b.Body[:0], requestOpen...)
}

// SetParams has the request carry the parameters of its run. They are a JSON object of strings and are taken as they
// are; empty ones are left out. It is called before Add: items that were added already are dropped.
func (b *RequestBuilder) SetParams(params []byte) {
	b.items = 0
	if len(params) == 0 {
		b.Body = append(b.Body[:0], requestOpen...)
		return
	}
	b.Body = append(b.Body[:0], requestParams...)
	b.Body = append(b.Body, params...)
	b.Body = append(b.Body, requestItems...)
}

// Add appends an item. The payload is JSON and is taken as it is; an empty one means null. Add returns false, and
// changes nothing, when the item does not fit: send what there is and start another request, or, when Len is 0, give
// the item up as too large.
func (b *RequestBuilder) Add(ordinal int, key string, payload []byte) bool {
	if len(payload) == 0 {
		payload = []byte("null")
	}
	return b.add(ordinal, key, payload, false)
}

// Part gives the next item that AddParts adds a part: what the step of a name has made of it. It has to stay as it is
// until then.
func (b *RequestBuilder) Part(name string, part Part) {
	b.parts = append(b.parts, NamedPart{name, part})
}

// AddParts appends an item as Add does, with the parts that Part has given it since the item before. A nil payload is
// left out: the step does not see it. The parts are forgotten, also when the item does not fit.
func (b *RequestBuilder) AddParts(ordinal int, key string, payload []byte) bool {
	fits := b.add(ordinal, key, payload, true)
	b.parts = b.parts[:0]
	return fits
}

func (b *RequestBuilder) add(ordinal int, key string, payload []byte, parts bool) bool {
	start := len(b.Body)
	body := b.Body
	if b.items > 0 {
		body = append(body, ',')
	}
	body = append(body, `{"i":`...)
	body = strconv.AppendInt(body, int64(ordinal), 10)
	body = append(body, `,"k":`...)
	body = AppendString(body, key)
	if len(body)+len(payload)+b.partsSize() > b.limit { // before what is large is copied
		b.Body = body[:start]
		return false
	}
	if payload != nil {
		body = append(append(body, `,"d":`...), payload...)
	}
	if parts {
		body = b.appendParts(body)
	}
	body = append(body, '}')
	if len(body) > b.limit {
		b.Body = body[:start]
		return false
	}
	b.Body = body
	b.items++
	return true
}

func (b *RequestBuilder) appendParts(body []byte) []byte {
	body = append(body, `,"p":{`...)
	for n := range b.parts {
		if n > 0 {
			body = append(body, ',')
		}
		body = appendPart(body, &b.parts[n])
	}
	return append(body, '}')
}

// partsSize is how many bytes the next item's parts take, at least.
func (b *RequestBuilder) partsSize() (size int) {
	for n := range b.parts {
		size += b.parts[n].size()
	}
	return size
}

// Len returns the number of items.
func (b *RequestBuilder) Len() int { return b.items }

// Size returns the bytes of the body so far.
func (b *RequestBuilder) Size() int { return len(b.Body) + len(requestClose) }

// Msg returns the request, ready to publish to StreamWork. Its Nats-Msg-Id is the slice's id: a slice is published
// once, and an attempt that follows has an id of its own. The message shares the builder's buffer until Reset; callers
// may add up to 400 bytes of headers.
func (b *RequestBuilder) Msg() *nats.Msg {
	open := len(b.Body)
	b.Body = append(b.Body, requestClose...)
	msg := &nats.Msg{Subject: WorkSubject(b.endpoint), Header: b.header, Data: b.Body}
	b.Body = b.Body[:open]
	return msg
}

// AppendString appends s as a JSON string. Invalid UTF-8 becomes U+FFFD.
func AppendString(dst []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c == '"' || c == '\\' || c >= 0x7f {
			dst, _ = jsontext.AppendQuote(dst, s) // its error is only that UTF-8 had to be fixed
			return dst
		}
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}

// CountItems returns how many items a request has, or 0 when it cannot be read.
func CountItems(h nats.Header, body []byte, limits Limits) int {
	request, err := ParseRequest(h, body, limits)
	if err != nil {
		return 0
	}
	return len(request.Items)
}

// Defaults of Limits.
const (
	// DefaultMaxBody is also the most that RequestBuilder and a service write into one body, whatever max_payload is.
	DefaultMaxBody  = 16 << 20
	DefaultMaxSlots = bitfield.Size
	DefaultMaxDepth = 128
)

// MaxPooled bounds a buffer that is kept between messages.
const MaxPooled = 4 << 20

// Limits bound what one message may cost its reader. A zero field means its default.
type Limits struct {
	MaxBody  int // bytes of a body after decompression
	MaxSlots int // slots of a reply, items of a request
	MaxDepth int // nesting of one result or payload
}

// WithDefaults returns the limits with the defaults where nothing is set.
func (l Limits) WithDefaults() Limits {
	if l.MaxBody <= 0 {
		l.MaxBody = DefaultMaxBody
	}
	if l.MaxSlots <= 0 {
		l.MaxSlots = DefaultMaxSlots
	}
	if l.MaxDepth <= 0 {
		l.MaxDepth = DefaultMaxDepth
	}
	return l
}

// MaxConcurrency bounds Concurrency.
const MaxConcurrency = 1024

// How often a request is delivered without being answered.
const (
	// DefaultDeliveries is after how many deliveries a request is answered with CodeDeliveries instead of being run:
	// something in it kills its services, and in smaller pieces the node can find out what. JetStream counts every
	// delivery alike, those too that a service handed back because it was stopping, so the limit is over what a
	// deployment of many instances takes.
	DefaultDeliveries = 12
	// SuspectDeliveries is the same for a request that is a piece of one given up so.
	SuspectDeliveries = 3
	// MaxDeliver is after how many deliveries the server delivers a request no more, whoever its services are. A node
	// then removes it.
	MaxDeliver = 20
)

// Trace is a W3C trace context (https://www.w3.org/TR/trace-context/): the headers traceparent and tracestate. The zero
// Trace is none. A service takes it from a request and hands it on to the reply, to what its flow asks, to dead letters
// and to Call; package oteltrace adds spans.
type Trace struct{ Parent, State string }

const (
	// traceparentLength is that of version 00: "00-" + 32 + "-" + 16 + "-" + 2.
	traceparentLength = 55
	// maxTraceparent bounds that of a later version, of which only the beginning is known.
	maxTraceparent = 128
	maxTracestate  = 512
	maxTraceStates = 32 // members
)

// ParseTrace checks a trace context. What is not one comes back as the zero Trace, so that garbage goes no further; a
// state that cannot be one is left out.
func ParseTrace(parent, state string) Trace {
	if !validParent(parent) {
		return Trace{}
	}
	if !validState(state) {
		state = ""
	}
	return Trace{Parent: parent, State: state}
}

// TraceOfHeader returns the trace context of a message.
func TraceOfHeader(h nats.Header) Trace {
	return ParseTrace(h.Get(HeaderTrace), h.Get(HeaderTraceState))
}

// IsZero reports whether there is none.
func (t Trace) IsZero() bool { return t.Parent == "" }

// SetHeader writes t into the headers of a message, and removes what they had before.
func (t Trace) SetHeader(h nats.Header) {
	delete(h, HeaderTrace)
	delete(h, HeaderTraceState)
	if t.Parent != "" {
		h[HeaderTrace] = []string{t.Parent}
		if t.State != "" {
			h[HeaderTraceState] = []string{t.State}
		}
	}
}

// validParent knows version 00 and what every later version has in common with it.
func validParent(s string) bool {
	switch {
	case len(s) < traceparentLength || len(s) > maxTraceparent || !printable(s),
		s[2] != '-' || s[35] != '-' || s[52] != '-',
		!lowerHex(s[:2]) || !lowerHex(s[3:35]) || !lowerHex(s[36:52]) || !lowerHex(s[53:55]),
		s[:2] == "ff", strings.Trim(s[3:35], "0") == "", strings.Trim(s[36:52], "0") == "":
		return false
	case s[:2] == "00":
		return len(s) == traceparentLength
	default:
		return len(s) == traceparentLength || s[traceparentLength] == '-'
	}
}

func lowerHex(s string) bool {
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// validState checks the form of a list of key=value. Whose keys they are is for their owners to see.
func validState(s string) bool {
	if s == "" || len(s) > maxTracestate || !printable(s) || strings.Count(s, ",") >= maxTraceStates {
		return false
	}
	for member := range strings.SplitSeq(s, ",") {
		key, value, found := strings.Cut(strings.Trim(member, " \t"), "=")
		if key == "" && !found { // an empty member is allowed
			continue
		}
		if key == "" || value == "" || strings.ContainsAny(key, " \t") || strings.Contains(value, "=") {
			return false
		}
	}
	return true
}

func printable(s string) bool {
	for i := range len(s) {
		if s[i] < 0x20 || s[i] > 0x7e {
			return false
		}
	}
	return true
}
