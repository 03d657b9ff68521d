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

// Slot is one item's place in a reply: a result, or an error.
type Slot struct {
	Ordinal     int
	Data        []byte     // the result; JSON unless ContentType says otherwise. nil with an error
	ContentType string     // "" means JSON
	Err         *SlotError // nil with a result
}

// SlotError says why an item, or a whole chunk, has no result.
type SlotError struct {
	Code, Message string
	Retry         bool // whether trying again could help
}

func (e *SlotError) Error() string { return e.Code + ": " + e.Message }

// Reply is one message of a reply. A reply may come in several, in any order.
type Reply struct {
	Meta
	Endpoint string // from the subject
	Service  string // who answered
	// Took is how long the service worked on the chunk, by its own account; 0 when it does not say. Only the final message
	// has it.
	Took time.Duration
	// Answered is -1 unless the message is the final one. Then it is the number of slots in all messages of this reply:
	// once that many have been recorded, an item without one was left out.
	Answered int
	Slots    []Slot
	Failure  *SlotError // what became of the items without a slot; only on a final message
	// Size is about how many bytes the reply keeps alive: its body, decompressed, and what was decoded from it. A small
	// message may hold a large reply; a reader that holds many at once goes by this.
	Size int
}

// ParseReply reads a message from StreamReply. Slot.Data and, when the body is not compressed, all that is in it alias
// body. The error is always a *MalformedError, and then nothing of the message counts.
//
// It checks the shape only. Whether the ordinals were asked for, or stand twice, is for the caller to see.
func ParseReply(subject string, h nats.Header, body []byte, limits Limits) (*Reply, error) {
	endpoint, err := endpointOf(subject, ReplyPrefix)
	if err != nil {
		meta, _ := ParseMeta(h) // for the ids, as far as they can be read
		return nil, About(meta, err)
	}
	return ReceiveReply(endpoint, h, body, limits)
}

// ReceiveReply is parseReplyOf for a message that has just come.
func ReceiveReply(endpoint string, h nats.Header, body []byte, limits Limits) (*Reply, error) {
	if err := notRelayed(h); err != nil {
		meta, _ := ParseMeta(h) // for the ids, as far as they can be read
		return nil, About(meta, err)
	}
	return ParseReplyOf(endpoint, h, body, limits)
}

// ParseReplyOf reads a message that the endpoint has sent as a reply, wherever to.
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

// What a Slot and a SlotError take, on a 64-bit machine.
const (
	slotSize  = 56
	errorSize = 40
)

// decoded is about how many bytes r holds beside its body.
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
		return nil //nolint:nilerr // a Failure is what the message tells, not what is wrong with it
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

// scan reads {"slots":[…]} or {"error":{…}} or both. Members it does not know are skipped.
func (r *Reply) scan(in *BodyReader, maxSlots int) {
	slots := false
	in.Open('{')
	for in.More() {
		switch string(in.Name()) {
		case `"slots"`:
			if slots {
				in.Fail(ReasonSlot, `"slots" stands twice`)
			}
			slots = true
			r.scanSlots(in, maxSlots)
		case `"error"`:
			if r.Failure != nil {
				in.Fail(ReasonSlot, `"error" stands twice`)
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
		if r.Slots == nil { // the first slot tells about how many there will be
			r.Slots = make([]Slot, 0, min((len(in.body)-start)/(in.Pos()-start)+2, maxSlots))
		}
		r.Slots = append(r.Slots, slot)
	}
}

// slotFields says which members of a slot have been seen.
type slotFields struct{ i, d, t, b, e bool }

// Once notes a member and fails when it stands twice.
func Once(in *BodyReader, seen *bool, name string) {
	if *seen {
		in.Fail(ReasonSlot, "what ends at byte %d has %q twice", in.Pos(), name)
	}
	*seen = true
}

// ScanSlot reads one slot.
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
	return slot
}

// checkSlot holds a slot to the rule: an ordinal, and exactly one of a result, a binary result and an error.
func checkSlot(in *BodyReader, slot *Slot, seen slotFields, encoded []byte) {
	switch {
	case !seen.i:
		in.Fail(ReasonSlot, `the slot that ends at byte %d has no "i"`, in.Pos())
	case seen.e && !seen.d && !seen.b && !seen.t:
	case seen.d && !seen.b && !seen.e && !seen.t:
		if flaw := in.flawOf(slot.Data); flaw != nil {
			slot.Data, slot.Err = nil, flaw.Slot()
		}
	case seen.b && !seen.d && !seen.e:
		slot.Data, slot.ContentType = binaryOf(in, "slot", slot.Ordinal, encoded, slot.ContentType, seen.t)
	default:
		in.Fail(ReasonSlot, `slot %d must have exactly one of "d", "b" (with "t") and "e"`, slot.Ordinal)
	}
}

// binaryOf reads a "b", and checks its "t" where there is one. Errors name it by what holds it, and a number.
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
	return data[:n], kind
}

// scanError reads {"code":…,"message":…,"retry":…}. Only the code is required.
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

// Return is where a reply goes when its asker is not a node: back into a flow, or to a caller who waits. The zero
// Return is none.
type Return struct {
	// Asker is the endpoint of the flow, or the name of the caller.
	Asker string
	// Callee is the endpoint that was asked. A reply under the name of another one is refused.
	Callee string
	// Call is the caller's token; empty when the asker is a flow.
	Call string
	// Stage is where the flow goes on, Request which of its requests this answers.
	Stage, Request int
}

// MaxRequests bounds the requests of one stage for one chunk.
const MaxRequests = 8192

// IsZero reports whether r is none.
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

// ParseReturn reads what String wrote. Nothing else is taken: a request must not make a service publish anywhere.
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

// smallNumber reads a number below limit that is written the one way that String writes it.
func smallNumber(text string, limit int) (int, bool) {
	n, err := strconv.Atoi(text)
	return n, err == nil && n >= 0 && n < limit && strconv.Itoa(n) == text
}

// maxTook is the longest that a chunk can be said to have taken; what is longer is no time of a chunk.
const maxTook = 365 * 24 * time.Hour

// FormatTook writes a time as HeaderTook has it: in milliseconds, with up to three decimals.
func FormatTook(d time.Duration) string {
	return strconv.FormatFloat(float64(max(d, 0).Microseconds())/1e3, 'f', -1, 64)
}

// parseTook reads HeaderTook. It is 0 when it is missing, or no time: what only says how long something took is no
// reason to refuse a reply.
func parseTook(value string) time.Duration {
	ms, err := strconv.ParseFloat(value, 64)
	if err != nil || math.IsNaN(ms) || ms < 0 || ms > float64(maxTook.Milliseconds()) {
		return 0
	}
	return time.Duration(math.Round(ms * float64(time.Millisecond)))
}
