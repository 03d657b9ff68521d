package conformance

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// message is one message of a reply. It is read as leniently as can be, so that a service that gets one thing wrong
// fails the check of that thing only; that a node could read it is a check of its own.
type message struct {
	subject string
	header  nats.Header
	data    []byte
	slots   []slot
	piece   *wire.Piece // nil: it is none
	failure *slotError
	final   int // -1 when the message does not say, or says no number
}

type slot struct {
	I *int            `json:"i"`
	D json.RawMessage `json:"d"`
	B *string         `json:"b"`
	T string          `json:"t"`
	E *slotError      `json:"e"`
}

type slotError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Retry   bool   `json:"retry"`
}

func (e *slotError) String() string {
	return fmt.Sprintf("error %s (%.80q, retry %t)", e.Code, e.Message, e.Retry)
}

func readMessage(msg *nats.Msg) *message {
	m := &message{subject: msg.Subject, header: msg.Header, data: msg.Data, final: -1}
	if n, err := strconv.Atoi(msg.Header.Get(wire.HeaderFinal)); err == nil {
		m.final = n
	}
	if wire.IsPiece(msg.Header) {
		m.piece, _ = wire.ParsePiece(msg.Subject, msg.Header, msg.Data) // "readable" says what is wrong with it
		return m
	}
	body := msg.Data
	if msg.Header.Get(wire.HeaderEncoding) == "zstd" {
		body = decompress(body)
	}
	var content struct {
		Slots []slot     `json:"slots"`
		Error *slotError `json:"error"`
	}
	if json.Unmarshal(body, &content) == nil {
		m.slots, m.failure = content.Slots, content.Error
	}
	if code := msg.Header.Get(wire.HeaderErrorCode); m.failure == nil && code != "" {
		m.failure = &slotError{Code: code, Message: msg.Header.Get(wire.HeaderError), Retry: true}
	}
	return m
}

func (m *message) id() string { return m.header.Get(wire.HeaderMsgID) }

// answer is a reply put together from its messages.
type answer struct{ messages []*message }

// slots returns the first slot of each ordinal.
func (a *answer) slots() map[int]slot {
	found := map[int]slot{}
	for _, m := range a.messages {
		for _, s := range m.slots {
			if s.I == nil {
				continue
			}
			if _, twice := found[*s.I]; !twice {
				found[*s.I] = s
			}
		}
	}
	for _, s := range a.pieces() {
		if _, twice := found[*s.I]; !twice {
			found[*s.I] = s
		}
	}
	return found
}

// sent returns the number of slots in all messages. A result in pieces is one.
func (a *answer) sent() int {
	n := len(a.pieces())
	for _, m := range a.messages {
		n += len(m.slots)
	}
	return n
}

// final returns the greatest Tranche-Final, or -1.
func (a *answer) final() int {
	n := -1
	for _, m := range a.messages {
		n = max(n, m.final)
	}
	return n
}

func (a *answer) failure() *slotError {
	for _, m := range a.messages {
		if m.failure != nil {
			return m.failure
		}
	}
	return nil
}

// String says in short what came.
func (a *answer) String() string {
	if len(a.messages) == 0 {
		return "nothing"
	}
	text := fmt.Sprintf("%d messages with %d slots", len(a.messages), a.sent())
	if a.final() >= 0 {
		text += fmt.Sprintf(", Tranche-Final %d", a.final())
	} else {
		text += ", none with Tranche-Final"
	}
	if f := a.failure(); f != nil {
		text += ", failure: " + f.String()
	}
	return text
}

// exactly returns an error unless there is a slot for each item of the request and for nothing else.
func (a *answer) exactly(r *request) error {
	slots := a.slots()
	var missing []int
	for _, item := range r.items {
		if _, ok := slots[item.ordinal]; !ok {
			missing = append(missing, item.ordinal)
		}
		delete(slots, item.ordinal)
	}
	expected := fmt.Sprintf("one slot for each of the %d items, with its ordinal", len(r.items))
	switch {
	case len(missing) > 0:
		return differs(expected, "%s; no slot for ordinals %s", a, ordinals(missing))
	case len(slots) > 0:
		var foreign []int
		for ordinal := range slots {
			foreign = append(foreign, ordinal)
		}
		return differs(expected, "%s; slots for ordinals that were not asked for: %s", a, ordinals(foreign))
	}
	return nil
}

// slot returns the slot of an ordinal, or why there is none.
func (a *answer) slot(ordinal int) (slot, error) {
	s, ok := a.slots()[ordinal]
	if !ok {
		return s, differs(fmt.Sprintf("a slot for ordinal %d", ordinal), "%s, none of them", a)
	}
	return s, nil
}

func (s slot) String() string {
	switch {
	case s.E != nil:
		return s.E.String()
	case s.B != nil:
		return fmt.Sprintf("%q as %s", brief(*s.B), cmp.Or(s.T, "no content type"))
	default:
		return brief(string(s.D))
	}
}

func brief(text string) string {
	if len(text) > 80 {
		return fmt.Sprintf("%s… (%d bytes)", text[:60], len(text))
	}
	return text
}

func ordinals(list []int) string {
	slices.Sort(list)
	var text []string
	for _, n := range list[:min(len(list), 8)] {
		text = append(text, strconv.Itoa(n))
	}
	if len(list) > 8 {
		text = append(text, "…")
	}
	return strings.Join(text, ", ")
}
