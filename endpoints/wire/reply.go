package wire

import (
	"encoding/base64"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
)

// Slot is one item's answer: a result or an error.
type Slot struct {
	Ordinal     int
	Data        []byte     // result: JSON, or as ContentType says; nil with an error
	ContentType string     // "" for JSON
	Err         *SlotError // nil with a result
}

// SlotError is why an item, or a whole chunk, has no result.
type SlotError struct {
	Code, Message string
	Retry         bool // a retry may succeed
}

func (e *SlotError) Error() string { return e.Code + ": " + e.Message }

// Reply is one message of a reply. The messages of a reply may arrive in any order.
type Reply struct {
	Meta
	Endpoint string // from the subject
	Service  string // that answered
	// Took is the service's time for the chunk, in the final message; 0 if not reported.
	Took time.Duration
	// Answered is the number of slots in the whole reply if this is the final message, else -1. Once that many are
	// recorded, items without a slot were left out.
	Answered int
	Slots    []Slot
	Failure  *SlotError // applies to items without a slot; final message only
	// Size approximates the bytes kept alive by the reply, decompressed and decoded. Readers that hold many replies use
	// it, because a small message may hold a large reply.
	Size int
}

// ParseReply parses a message from StreamReply. Slot.Data and, unless the body is compressed, all else alias body.
// The error is always a *MalformedError; then no part of the message counts. Callers must check that ordinals were
// requested and are unique.
func ParseReply(subject string, h nats.Header, body []byte, limits Limits) (*Reply, error) {
	endpoint, err := endpointOf(subject, ReplyPrefix)
	if err != nil {
		meta, _ := ParseMeta(h) // for the readable IDs
		return nil, About(meta, err)
	}
	return ReceiveReply(endpoint, h, body, limits)
}

// ReceiveReply is ParseReplyOf for a message just received: it also rejects relayed messages.
func ReceiveReply(endpoint string, h nats.Header, body []byte, limits Limits) (*Reply, error) {
	if err := notRelayed(h); err != nil {
		meta, _ := ParseMeta(h) // for the readable IDs
		return nil, About(meta, err)
	}
	return ParseReplyOf(endpoint, h, body, limits)
}

// ParseReplyOf parses a reply message of the endpoint, on any subject.
func ParseReplyOf(endpoint string, h nats.Header, body []byte, limits Limits) (*Reply, error) {
	limits = limits.WithDefaults()
	meta, err := ParseMeta(h)
	if err == nil && IsPiece(h) {
		err = Malformed(ReasonPiece, "%s is there: only nodes take results in pieces", HeaderPiece)
	}
	if err != nil {
		return nil, About(meta, err)
	}
	reply := &Reply{Meta: meta, Endpoint: endpoint, Answered: -1,
		Service: cleanMessage(Cut(h.Get(HeaderService), MaxServiceName)), Took: parseTook(h.Get(HeaderTook))}
	if err := reply.parseBody(h, body, limits); err != nil {
		return nil, About(meta, err)
	}
	if err := reply.parseFinal(h, limits); err != nil {
		return nil, About(meta, err)
	}
	reply.Size += reply.decoded()
	return reply, nil
}

// Sizes of a Slot and a SlotError on a 64-bit machine.
const (
	slotSize  = 56
	errorSize = 40
)

// decoded approximates the bytes of r besides its body.
func (r *Reply) decoded() int {
	n := cap(r.Slots)*slotSize + len(r.Service)
	for i := range r.Slots {
		switch s := &r.Slots[i]; {
		case s.Err != nil:
			n += errorSize + len(s.Err.Code) + len(s.Err.Message)
		case s.ContentType != "":
			n += cap(s.Data) + len(s.ContentType)
		}
	}
	return n
}

func (r *Reply) parseBody(h nats.Header, body []byte, limits Limits) error {
	body, err := decode(h, body, limits.MaxBody)
	if err != nil {
		return err
	}
	r.Size = cap(body)
	code := h.Get(HeaderErrorCode)
	if len(body) > 0 || code == "" {
		in := newReplyReader(body, limits.MaxDepth)
		r.scan(in, limits.MaxSlots)
		if in.Err != nil {
			return in.Err
		}
	}
	if code == "" || r.Failure != nil {
		return nil //nolint:nilerr // a Failure is content, not a parse error
	}
	if !validCode(code) {
		return Malformed(ReasonHeader, "%s is %.80q; it must be 1 to %d of A-Z a-z 0-9 _ . -", HeaderErrorCode, code,
			MaxCodeLength)
	}
	r.Failure = &SlotError{Code: code, Message: cleanMessage(h.Get(HeaderError)), Retry: true}
	return nil
}

func (r *Reply) parseFinal(h nats.Header, limits Limits) error {
	value := h.Get(HeaderFinal)
	if value == "" {
		if r.Failure != nil {
			return Malformed(ReasonFinal, "a failure speaks for all that is left and needs %s", HeaderFinal)
		}
		return nil
	}
	n, err := strconv.ParseUint(value, 10, 31)
	switch {
	case err != nil:
		return Malformed(ReasonFinal, "%s is %.40q; it must be the number of slots sent in all", HeaderFinal, value)
	case int(n) < len(r.Slots):
		return Malformed(ReasonFinal, "%s is %d, but this message alone has %d slots", HeaderFinal, n, len(r.Slots))
	case int(n) > limits.MaxSlots:
		return Malformed(ReasonTooMany, "%s is %d; a slice has at most %d items", HeaderFinal, n, limits.MaxSlots)
	}
	r.Answered = int(n)
	return nil
}

// scan parses {"slots":[…]}, {"error":{…}} or both. Unknown members are skipped.
func (r *Reply) scan(in *BodyReader, maxSlots int) {
	slots := false
	in.Open('{')
	for in.More() {
		switch string(in.Name()) {
		case `"slots"`:
			if slots {
				in.Fail(ReasonSlot, `"slots" appears twice`)
			}
			slots = true
			r.scanSlots(in, maxSlots)
		case `"error"`:
			if r.Failure != nil {
				in.Fail(ReasonSlot, `"error" appears twice`)
			}
			r.Failure = scanError(in)
		default:
			in.value()
		}
	}
	in.End()
	if !slots && r.Failure == nil {
		in.Fail(ReasonSlot, `the body has neither "slots" nor "error"`)
	}
}

func (r *Reply) scanSlots(in *BodyReader, maxSlots int) {
	in.Open('[')
	for in.More() {
		if len(r.Slots) == maxSlots {
			in.Fail(ReasonTooMany, "more than %d slots", maxSlots)
			return
		}
		start := in.Pos()
		slot := ScanSlot(in)
		if in.Err != nil {
			return
		}
		if r.Slots == nil { // estimate the number of slots from the first
			r.Slots = make([]Slot, 0, min((len(in.body)-start)/(in.Pos()-start)+2, maxSlots))
		}
		r.Slots = append(r.Slots, slot)
	}
}

type slotFields struct{ i, d, t, b, e, r bool }

// Once records a member and fails if it was seen before.
func Once(in *BodyReader, seen *bool, name string) {
	if *seen {
		in.Fail(ReasonSlot, "what ends at byte %d has %q twice", in.Pos(), name)
	}
	*seen = true
}

// ScanSlot parses one slot.
func ScanSlot(in *BodyReader) (slot Slot) {
	var seen slotFields
	var encoded []byte
	in.Open('{')
	for in.More() {
		switch string(in.Name()) {
		case `"i"`:
			Once(in, &seen.i, "i")
			slot.Ordinal = in.Ordinal()
		case `"d"`:
			Once(in, &seen.d, "d")
			slot.Data = in.Raw()
		case `"t"`:
			Once(in, &seen.t, "t")
			slot.ContentType = string(in.Text(nil))
		case `"b"`:
			Once(in, &seen.b, "b")
			encoded = in.Text([]byte{})
		case `"e"`:
			Once(in, &seen.e, "e")
			slot.Err = scanError(in)
		default:
			in.value()
		}
	}
	if in.Err == nil {
		checkSlot(in, &slot, seen, encoded)
	}
	if in.Err == nil && slot.Err == nil && slot.ContentType == "" {
		if flaw := in.flawOf(slot.Data); flaw != nil {
			slot.Data, slot.Err = nil, flaw.Slot()
		}
	}
	return slot
}

// checkSlot checks that a slot has an ordinal and exactly one of result, binary result and error.
func checkSlot(in *BodyReader, slot *Slot, seen slotFields, encoded []byte) {
	switch {
	case !seen.i:
		in.Fail(ReasonSlot, `the slot that ends at byte %d has no "i"`, in.Pos())
	case seen.d && !seen.b && !seen.e && !seen.t, seen.e && !seen.d && !seen.b && !seen.t:
	case seen.b && !seen.d && !seen.e:
		slot.Data, slot.ContentType = binaryOf(in, "slot", slot.Ordinal, encoded, slot.ContentType, seen.t)
	default:
		in.Fail(ReasonSlot, `slot %d must have exactly one of "d", "b" (with "t") and "e"`, slot.Ordinal)
	}
}

// binaryOf decodes "b" and checks "t", if present. holder and number are for errors.
func binaryOf(in *BodyReader, holder string, number int, text []byte, kind string, typed bool) ([]byte, string) {
	data := make([]byte, base64.StdEncoding.DecodedLen(len(text)))
	n, err := base64.StdEncoding.Strict().Decode(data, text)
	if err != nil {
		in.Fail(ReasonSlot, "%s %d: b is not standard base64 with padding", holder, number)
	}
	if !typed {
		kind = DefaultBinaryType
	} else if !ValidContentType(kind) {
		in.Fail(ReasonSlot, "%s %d has content type %.80q, which is not one", holder, number, kind)
	}
	return data[:n], ResultType(kind)
}

// scanError parses {"code":…,"message":…,"retry":…}. Only code is required.
func scanError(in *BodyReader) *SlotError {
	var e SlotError
	in.Open('{')
	for in.More() {
		switch string(in.Name()) {
		case `"code"`:
			e.Code = string(in.Text(nil))
		case `"message"`:
			e.Message = cleanMessage(string(in.Text(nil)))
		case `"retry"`:
			e.Retry = in.boolean()
		default:
			in.value()
		}
	}
	if in.Err == nil && !validCode(e.Code) {
		in.Fail(ReasonSlot, "the error that ends at byte %d has code %.80q; it must be 1 to %d of A-Z a-z 0-9 _ . -",
			in.Pos(), e.Code, MaxCodeLength)
	}
	return &e
}

// Return is where a reply goes if the requester is not a node: to a flow or a waiting caller. The zero Return means a
// node.
type Return struct {
	// Asker is the flow's endpoint or the caller's name.
	Asker string
	// Callee is the endpoint asked. Replies in another name are rejected.
	Callee string
	// Call is the caller's token; empty for a flow.
	Call string
	// Stage is the stage that continues, Request the number of the request answered.
	Stage, Request int
}

// MaxRequests bounds the requests of one stage for one chunk.
const MaxRequests = 8192

// IsZero reports whether r is the zero Return.
func (r Return) IsZero() bool { return r == Return{} }

// String returns the subject, or "" for the zero Return.
func (r Return) String() string {
	switch {
	case r.IsZero():
		return ""
	case r.Call != "":
		return CallPrefix + r.Asker + "." + r.Call + "." + r.Callee
	default:
		return StagePrefix + r.Asker + "." + strconv.Itoa(r.Stage) + "." + strconv.Itoa(r.Request) + "." + r.Callee
	}
}

// ParseReturn parses the output of String and rejects all else: a request must not make a service publish anywhere.
func ParseReturn(subject string) (Return, error) {
	if subject == "" {
		return Return{}, nil
	}
	r, ok := parseReturn(subject)
	if !ok {
		return Return{}, fmt.Errorf("%.100q is neither %s<flow>.<stage>.<request>.<endpoint> nor "+
			"%s<caller>.<token>.<endpoint>", subject, StagePrefix, CallPrefix)
	}
	return r, nil
}

func parseReturn(subject string) (r Return, ok bool) {
	if rest, found := strings.CutPrefix(subject, CallPrefix); found {
		tokens := strings.Split(rest, ".")
		if len(tokens) != 3 {
			return r, false
		}
		r = Return{Asker: tokens[0], Call: tokens[1], Callee: tokens[2]}
		return r, ValidateName(r.Asker) == nil && ValidateName(r.Call) == nil && ValidateName(r.Callee) == nil
	}
	rest, found := strings.CutPrefix(subject, StagePrefix)
	tokens := strings.Split(rest, ".")
	if !found || len(tokens) != 4 {
		return r, false
	}
	r = Return{Asker: tokens[0], Callee: tokens[3]}
	stage, isStage := smallNumber(tokens[1], MaxStages)
	request, isRequest := smallNumber(tokens[2], MaxRequests)
	r.Stage, r.Request = stage, request
	return r, isStage && isRequest && stage > 0 && ValidateName(r.Asker) == nil && ValidateName(r.Callee) == nil
}

// smallNumber parses a canonical number below limit.
func smallNumber(text string, limit int) (int, bool) {
	n, err := strconv.Atoi(text)
	return n, err == nil && n >= 0 && n < limit && strconv.Itoa(n) == text
}

// maxTook bounds a plausible time of a chunk.
const maxTook = 365 * 24 * time.Hour

// FormatTook formats HeaderTook: milliseconds with up to three decimals.
func FormatTook(d time.Duration) string {
	return strconv.FormatFloat(float64(max(d, 0).Microseconds())/1e3, 'f', -1, 64)
}

// parseTook parses HeaderTook. It returns 0 if missing or invalid, which is no reason to reject a reply.
func parseTook(value string) time.Duration {
	ms, err := strconv.ParseFloat(value, 64)
	if err != nil || math.IsNaN(ms) || ms < 0 || ms > float64(maxTook.Milliseconds()) {
		return 0
	}
	return time.Duration(math.Round(ms * float64(time.Millisecond)))
}
