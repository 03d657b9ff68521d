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
	// headerReserve is left in each message for headers that publishers add: Nats-TTL, traceparent, the expected stream.
	headerReserve = 512
)

// RequestBuilder builds a list request as raw JSON, {"params":{…},"items":[{"i":17,"k":"CUST-18","d":{…},"p":{…}}]}.
// It is not safe for concurrent use.
type RequestBuilder struct {
	endpoint string
	Meta     Meta
	header   nats.Header
	limit    int
	Body     []byte
	open     int // bytes of Body before the first item
	items    int
	parts    Parts // of the next item
}

// NewRequestBuilder starts a request of at most maxPayload bytes with headers, usually nc.MaxPayload(). The body is
// limited to DefaultMaxBody.
func NewRequestBuilder(endpoint string, meta Meta, maxPayload int) *RequestBuilder {
	b := &RequestBuilder{}
	b.Reset(endpoint, meta, maxPayload)
	return b
}

// Reset starts another request in the same buffer. The previous message must no longer be needed: its publish was
// acknowledged or abandoned.
func (b *RequestBuilder) Reset(endpoint string, meta Meta, maxPayload int) {
	b.endpoint, b.Meta, b.items, b.parts = endpoint, meta, 0, b.parts[:0]
	b.header = meta.Request()
	b.header[HeaderMsgID] = []string{meta.Slice.String()}
	b.limit = min(maxPayload-HeaderSize(b.header)-headerReserve, DefaultMaxBody) - len(requestClose)
	b.Body = append(b.Body[:0], requestOpen...)
	b.open = len(b.Body)
}

// SetParams sets the run's parameters, a JSON object of strings, unchecked; empty means none. Call it before Add: it
// drops items already added.
func (b *RequestBuilder) SetParams(params []byte) {
	b.items = 0
	b.Body = append(b.Body[:0], requestOpen...)
	if len(params) > len("{}") {
		b.Body = append(append(append(b.Body[:0], requestParams...), params...), requestItems...)
	}
	b.open = len(b.Body)
}

// Add appends an item with its JSON payload, unchecked; empty means null. It returns false, without effect, if the
// item does not fit: send the request and start another, or, if Len is 0, fail the item as too large.
func (b *RequestBuilder) Add(ordinal int, key string, payload []byte) bool {
	if len(payload) == 0 {
		payload = []byte("null")
	}
	return b.add(ordinal, key, payload, false)
}

// Part adds a part to the next AddParts: the named step's result. It must not change until then.
func (b *RequestBuilder) Part(name string, part Part) {
	b.parts = append(b.parts, NamedPart{name, part})
}

// AddParts is Add with the parts added since the last item. A nil payload is omitted, as for steps that do not
// receive it. The parts are dropped even if the item does not fit.
func (b *RequestBuilder) AddParts(ordinal int, key string, payload []byte) bool {
	fits := b.add(ordinal, key, payload, true)
	b.parts = b.parts[:0]
	return fits
}

// ReferParts is AddParts for nodes, which give services the parts that do not fit: of an item that is too large for
// any request, references take the place of parts, the largest first.
func (b *RequestBuilder) ReferParts(ordinal int, key string, payload []byte) bool {
	fits := b.add(ordinal, key, payload, true)
	for !fits && (b.items == 0 || b.open+len(key)+len(payload)+b.partsSize()+refSize > b.limit) && b.refer() {
		fits = b.add(ordinal, key, payload, true)
	}
	b.parts = b.parts[:0]
	return fits
}

// refer replaces the largest part by a reference, unless all are small.
func (b *RequestBuilder) refer() bool {
	var largest *Part
	for n := range b.parts {
		if p := &b.parts[n].Part; largest == nil || len(p.Data) > len(largest.Data) {
			largest = p
		}
	}
	if largest == nil || len(largest.Data) <= refSize {
		return false
	}
	largest.Data, largest.Ref = nil, RefTo(largest.Data)
	return true
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
	if len(body)+len(payload)+b.partsSize() > b.limit { // before copying what is large
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

// partsSize returns the minimum bytes of the next item's parts.
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

// Msg returns the request, ready to publish to StreamWork. Its Nats-Msg-Id is the slice ID: a slice is published
// once, and the next attempt has another ID. The message shares the builder's buffer until Reset. Callers may add up
// to 400 bytes of headers.
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
			dst, _ = jsontext.AppendQuote(dst, s) // the error only reports repaired UTF-8
			return dst
		}
	}
	dst = append(dst, '"')
	dst = append(dst, s...)
	return append(dst, '"')
}

// CountItems returns the number of items of a request, or 0 if it is unreadable.
func CountItems(h nats.Header, body []byte, limits Limits) int {
	request, err := ParseRequest(h, body, limits)
	if err != nil {
		return 0
	}
	return len(request.Items)
}

// Defaults of Limits.
const (
	// DefaultMaxBody also limits the bodies that are written, regardless of max_payload.
	DefaultMaxBody  = 16 << 20
	DefaultMaxSlots = bitfield.Size
	DefaultMaxDepth = 128
)

// MaxPooled bounds a buffer kept between messages.
const MaxPooled = 4 << 20

// Limits bound the cost of reading one message. Zero fields mean defaults.
type Limits struct {
	MaxBody  int // bytes after decompression
	MaxSlots int // slots of a reply, items of a request
	MaxDepth int // nesting of a result or payload
}

// WithDefaults replaces zero fields by defaults.
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

// MaxConcurrency is the largest value of the option Concurrency.
const MaxConcurrency = 1024

// Limits of unanswered deliveries.
const (
	// DefaultDeliveries is after how many deliveries a request fails with CodeDeliveries: it may kill its services, and
	// the node finds the item by splitting. JetStream also counts deliveries that stopping services returned, so the
	// limit exceeds what a deployment of many instances causes.
	DefaultDeliveries = 12
	// SuspectDeliveries is the limit for part of a request that failed so.
	SuspectDeliveries = 3
	// MaxDeliver is the server's limit of deliveries. A node then removes the request.
	MaxDeliver = 20
)

// Trace is a W3C trace context (https://www.w3.org/TR/trace-context/); the zero Trace is none. A service passes it on
// from a request to the reply, the questions of its flow, dead letters and Call. Package telemetry adds spans.
type Trace struct{ Parent, State string }

const (
	// traceparentLength is that of version 00: "00-" + 32 + "-" + 16 + "-" + 2.
	traceparentLength = 55
	// maxTraceparent bounds that of later versions, whose beginning is known.
	maxTraceparent = 128
	maxTracestate  = 512
	maxTraceStates = 32 // members
)

// ParseTrace validates a trace context. It returns the zero Trace for an invalid parent and drops an invalid state.
func ParseTrace(parent, state string) Trace {
	if !validParent(parent) {
		return Trace{}
	}
	if !validState(state) {
		state = ""
	}
	return Trace{Parent: parent, State: state}
}

// TraceOfHeader returns the trace context in a message's headers.
func TraceOfHeader(h nats.Header) Trace {
	return ParseTrace(h.Get(HeaderTrace), h.Get(HeaderTraceState))
}

// IsZero reports whether t is the zero Trace.
func (t Trace) IsZero() bool { return t.Parent == "" }

// SetHeader replaces the trace context in a message's headers.
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

// validParent accepts version 00, and later versions by what they share with it.
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

// validState checks the form of a key=value list, not the keys.
func validState(s string) bool {
	if s == "" || len(s) > maxTracestate || !printable(s) || strings.Count(s, ",") >= maxTraceStates {
		return false
	}
	for member := range strings.SplitSeq(s, ",") {
		key, value, found := strings.Cut(strings.Trim(member, " \t"), "=")
		if key == "" && !found { // empty members are allowed
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
