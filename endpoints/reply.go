package endpoints

import (
	"encoding/base64"
	"strconv"

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
	// Answered is -1 unless the message is the final one. Then it is the number of slots in all messages of this reply:
	// once that many have been recorded, an item without one was left out.
	Answered int
	Slots    []Slot
	Failure  *SlotError // what became of the items without a slot; only on a final message
}

// ParseReply reads a message from StreamReply. Slot.Data and, when the body is not compressed, all that is in it alias
// body. The error is always a *MalformedError, and then nothing of the message counts.
//
// It checks the shape only. Whether the ordinals were asked for, or stand twice, is for the caller to see.
func ParseReply(subject string, h nats.Header, body []byte, limits Limits) (*Reply, error) {
	limits = limits.withDefaults()
	meta, err := parseMeta(h)
	if err != nil {
		return nil, about(meta, err)
	}
	reply := &Reply{Meta: meta, Service: cleanMessage(cut(h.Get(HeaderService), maxServiceName)), Answered: -1}
	if reply.Endpoint, err = endpointOf(subject, replyPrefix); err != nil {
		return nil, about(meta, err)
	}
	if err := reply.parseBody(h, body, limits); err != nil {
		return nil, about(meta, err)
	}
	if err := reply.parseFinal(h, limits); err != nil {
		return nil, about(meta, err)
	}
	return reply, nil
}

func (r *Reply) parseBody(h nats.Header, body []byte, limits Limits) error {
	body, err := decode(h, body, limits.MaxBody)
	if err != nil {
		return err
	}
	code := h.Get(HeaderErrorCode)
	if len(body) > 0 || code == "" {
		s := newScanner(body, limits.MaxDepth)
		r.scan(&s, limits.MaxSlots)
		if s.err != nil {
			return s.err
		}
	}
	if code == "" || r.Failure != nil {
		return nil //nolint:nilerr // a Failure is what the message tells, not what is wrong with it
	}
	if !validCode(code) {
		return malformed(ReasonHeader, "%s is %.80q; it must be 1 to %d of A-Z a-z 0-9 _ . -", HeaderErrorCode, code,
			MaxCodeLength)
	}
	r.Failure = &SlotError{Code: code, Message: cleanMessage(h.Get(HeaderError)), Retry: true}
	return nil
}

func (r *Reply) parseFinal(h nats.Header, limits Limits) error {
	value := h.Get(HeaderFinal)
	if value == "" {
		if r.Failure != nil {
			return malformed(ReasonFinal, "a failure speaks for all that is left and needs %s", HeaderFinal)
		}
		return nil
	}
	n, err := strconv.ParseUint(value, 10, 31)
	switch {
	case err != nil:
		return malformed(ReasonFinal, "%s is %.40q; it must be the number of slots sent in all", HeaderFinal, value)
	case int(n) < len(r.Slots):
		return malformed(ReasonFinal, "%s is %d, but this message alone has %d slots", HeaderFinal, n, len(r.Slots))
	case int(n) > limits.MaxSlots:
		return malformed(ReasonTooMany, "%s is %d; a slice has at most %d items", HeaderFinal, n, limits.MaxSlots)
	}
	r.Answered = int(n)
	return nil
}

// scan reads {"slots":[…]} or {"error":{…}} or both. Members it does not know are skipped.
func (r *Reply) scan(s *scanner, maxSlots int) {
	slots := false
	s.expect('{')
	for first := true; s.more(first, '}'); first = false {
		switch string(s.name()) {
		case "slots":
			if slots {
				s.fail(ReasonSlot, `"slots" stands twice`)
			}
			slots = true
			r.scanSlots(s, maxSlots)
		case "error":
			if r.Failure != nil {
				s.fail(ReasonSlot, `"error" stands twice`)
			}
			r.Failure = scanError(s)
		default:
			s.value()
		}
	}
	s.end()
	if !slots && r.Failure == nil {
		s.fail(ReasonSlot, `the body has neither "slots" nor "error"`)
	}
}

func (r *Reply) scanSlots(s *scanner, maxSlots int) {
	s.expect('[')
	for first := true; s.more(first, ']'); first = false {
		if len(r.Slots) == maxSlots {
			s.fail(ReasonTooMany, "more than %d slots", maxSlots)
			return
		}
		start := s.pos
		slot := scanSlot(s)
		if s.err != nil {
			return
		}
		if r.Slots == nil { // the first slot tells about how many there will be
			r.Slots = make([]Slot, 0, min((len(s.body)-start)/(s.pos-start)+2, maxSlots))
		}
		r.Slots = append(r.Slots, slot)
	}
}

// slotFields says which members of a slot have been seen.
type slotFields struct{ i, d, t, b, e bool }

// once notes a member and fails when it stands twice.
func once(s *scanner, seen *bool, name string) {
	if *seen {
		s.fail(ReasonSlot, "a slot ending at byte %d has %q twice", s.pos, name)
	}
	*seen = true
}

func scanSlot(s *scanner) (slot Slot) {
	var seen slotFields
	var encoded []byte
	start := s.pos
	s.expect('{')
	for first := true; s.more(first, '}'); first = false {
		switch string(s.name()) {
		case "i":
			once(s, &seen.i, "i")
			slot.Ordinal = s.ordinal()
		case "d":
			once(s, &seen.d, "d")
			slot.Data = s.value()
		case "t":
			once(s, &seen.t, "t")
			slot.ContentType = s.text(s.str())
		case "b":
			once(s, &seen.b, "b")
			encoded = s.str()
		case "e":
			once(s, &seen.e, "e")
			slot.Err = scanError(s)
		default:
			s.value()
		}
	}
	if s.err == nil {
		checkSlot(s, start, &slot, seen, encoded)
	}
	return slot
}

// checkSlot holds a slot to the rule: an ordinal, and exactly one of a result, a binary result and an error.
func checkSlot(s *scanner, start int, slot *Slot, seen slotFields, encoded []byte) {
	switch {
	case !seen.i:
		s.fail(ReasonSlot, `the slot at byte %d has no "i"`, start)
	case seen.d && !seen.b && !seen.e && !seen.t, seen.e && !seen.d && !seen.b && !seen.t:
	case seen.b && !seen.d && !seen.e:
		slot.Data = decodeBinary(s, slot.Ordinal, encoded)
		if !seen.t {
			slot.ContentType = DefaultBinaryType
		} else if !validContentType(slot.ContentType) {
			s.fail(ReasonSlot, "slot %d has content type %.80q, which is not one", slot.Ordinal, slot.ContentType)
		}
	default:
		s.fail(ReasonSlot, `slot %d must have exactly one of "d", "b" (with "t") and "e"`, slot.Ordinal)
	}
}

func decodeBinary(s *scanner, ordinal int, quoted []byte) []byte {
	text := quoted[1 : len(quoted)-1]
	data := make([]byte, base64.StdEncoding.DecodedLen(len(text)))
	n, err := base64.StdEncoding.Strict().Decode(data, text)
	if err != nil {
		s.fail(ReasonSlot, "slot %d: b is not standard base64 with padding", ordinal)
	}
	return data[:n]
}

// scanError reads {"code":…,"message":…,"retry":…}. Only the code is required.
func scanError(s *scanner) *SlotError {
	var e SlotError
	s.expect('{')
	for first := true; s.more(first, '}'); first = false {
		switch string(s.name()) {
		case "code":
			e.Code = s.text(s.str())
		case "message":
			e.Message = cleanMessage(s.text(s.str()))
		case "retry":
			e.Retry = s.boolean()
		default:
			s.value()
		}
	}
	if s.err == nil && !validCode(e.Code) {
		s.fail(ReasonSlot, "the error that ends at byte %d has code %.80q; it must be 1 to %d of A-Z a-z 0-9 _ . -",
			s.pos, e.Code, MaxCodeLength)
	}
	return &e
}
