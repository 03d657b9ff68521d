package wire

import (
	"strings"

	"github.com/nats-io/nats.go"
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
