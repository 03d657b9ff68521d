package conformance

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"

	"github.com/tranchehq/tranche/endpoints/wire"
)

func orderChecks() []check {
	const reply, several = "The reply", "Several messages, and the final one"
	return []check{
		{"results", "results of every kind of JSON arrive as they are", reply, needContract, checkResults},
		{"error-slots", "errors for good and errors to retry", reply, needContract, checkErrorSlots},
		{"missing", "an item that is left out has no slot, and does not count", several, needContract, checkMissing},
		{"twice", "of two answers to an item the first counts", "What a node does with a reply", needContract, checkTwice},
		{"partial", "a part of a reply is sent as soon as the handler says so", several, needContract, checkPartial},
		{"binary", "binary results, with and without a content type", reply, needContract, checkBinary},
		{"parts", "the parts of other steps, and an item without a payload", "Parts", needContract, checkParts},
		{"fail-chunk", "a failure speaks for the items without a slot", "Failure of the chunk", needContract, checkFailChunk},
	}
}

// obeyed asks the conformance endpoint and returns its reply.
func (n *node) obeyed(ctx context.Context, list ...order) (*answer, error) {
	return n.answered(ctx, orders(list...))
}

func checkResults(ctx context.Context, n *node) error {
	var list []order
	values := []string{
		`null`, `true`, `0`, `-1.5`, `"text"`, `""`, `[]`, `{}`, `"\"quoted\" \\ \n ключ 鍵 🗝"`,
		`{"deep":[{"er":[1,[2,[3,null]]]}],"d":1,"e":{"code":"none"}}`, `123456789012`, `1e3`,
	}
	for _, value := range values {
		list = append(list, order{"do": "echo", "value": json.RawMessage(value)})
	}
	a, err := n.obeyed(ctx, list...)
	if err != nil {
		return err
	}
	for ordinal, value := range values {
		s, err := a.slot(ordinal)
		if err != nil {
			return err
		}
		if !sameJSON(s.D, []byte(value)) {
			return differs("the result "+value, "%s", s)
		}
	}
	return nil
}

func checkErrorSlots(ctx context.Context, n *node) error {
	a, err := n.obeyed(ctx, order{"do": "echo", "value": 1},
		order{"do": "fail", "code": "overdrawn", "message": `the "balance" is −3 €`},
		order{"do": "retry", "code": "row.locked-1", "message": "try again"})
	if err != nil {
		return err
	}
	for ordinal, want := range map[int]slotError{
		1: {"overdrawn", `the "balance" is −3 €`, false}, 2: {"row.locked-1", "try again", true},
	} {
		s, err := a.slot(ordinal)
		if err != nil {
			return err
		}
		if s.E == nil || *s.E != want {
			return differs(fmt.Sprintf("an error slot with %s", &want), "%s", s)
		}
	}
	if f := a.failure(); f != nil {
		return differs("no failure of the chunk: each item has a slot", "%s", f)
	}
	return nil
}

func checkMissing(ctx context.Context, n *node) error {
	a, err := n.obeyed(ctx, order{"do": "echo", "value": 1}, order{"do": "skip"}, order{"do": "echo", "value": 3})
	if err != nil {
		return err
	}
	if _, there := a.slots()[1]; there || a.sent() != 2 || a.final() != 2 || a.failure() != nil {
		return differs("slots for ordinals 0 and 2, Tranche-Final: 2 and no failure", "%s", a)
	}
	nothing, err := n.obeyed(ctx, order{"do": "skip"})
	if err != nil {
		return err
	}
	if nothing.sent() != 0 || nothing.final() != 0 {
		return differs("an empty reply with Tranche-Final: 0", "%s", nothing)
	}
	return nil
}

func checkTwice(ctx context.Context, n *node) error {
	a, err := n.obeyed(ctx, order{"do": "twice"}, order{"do": "echo", "value": 1})
	if err != nil {
		return err
	}
	s, err := a.slot(0)
	if err != nil {
		return err
	}
	if !sameJSON(s.D, []byte(`"first"`)) {
		return differs(`"first" as the first slot of the item`, "%s", s)
	}
	if a.final() != a.sent() {
		return differs(fmt.Sprintf("Tranche-Final: %d, the slots that were sent", a.sent()), "%s", a)
	}
	return nil
}

func checkPartial(ctx context.Context, n *node) error {
	r := orders(order{"do": "echo", "value": 0}, order{"do": "partial"}, order{"do": "echo", "value": 2},
		order{"do": "partial"}, order{"do": "slow", "ms": 100})
	a, err := n.answered(ctx, r)
	if err != nil {
		return err
	}
	if err := a.exactly(r); err != nil {
		return err
	}
	if len(a.messages) < 3 {
		n.retains = true
		return differs(`3 messages: two of "partial" and the final one`, "%s", a)
	}
	return oneFinal(a)
}

func checkBinary(ctx context.Context, n *node) error {
	a, err := n.obeyed(ctx, order{"do": "bytes", "n": 1000, "type": "application/pdf"},
		order{"do": "bytes", "n": 1, "type": "image/png"}, order{"do": "bytes", "n": 0, "type": "text/plain"},
		order{"do": "bytes", "n": 3})
	if err != nil {
		return err
	}
	for ordinal, want := range []struct {
		size int
		kind string
	}{{1000, "application/pdf"}, {1, "image/png"}, {0, "text/plain"}, {3, wire.DefaultBinaryType}} {
		s, err := a.slot(ordinal)
		if err != nil {
			return err
		}
		if !s.holds(want.size) || s.T != want.kind && (s.T != "" || want.kind != wire.DefaultBinaryType) {
			return differs(fmt.Sprintf(`"b" with the bytes 0, 1, 2, … of %d, in base64 with padding, and "t" %s`, want.size,
				want.kind), "%s", s)
		}
	}
	return nil
}

// holds reports whether the binary result is n bytes that count up.
func (s slot) holds(n int) bool {
	if s.B == nil {
		return false
	}
	data, err := base64.StdEncoding.Strict().DecodeString(*s.B)
	if err != nil || len(data) != n {
		return false
	}
	for i, b := range data {
		if b != byte(i) {
			return false
		}
	}
	return true
}

// checkParts sends items with parts, without the one that is asked for, and with parts alone: whatever a service makes
// of the last, it answers it.
func checkParts(ctx context.Context, n *node) error {
	r := orders(order{"do": "part", "name": "accounts"}, order{"do": "part", "name": "logo"},
		order{"do": "part", "name": "none"}, order{})
	for i, parts := range []string{
		`{"accounts":{"d":{"n":[1,null]}},"logo":{"t":"image/png","b":"AAE="}}`,
		`{"accounts":{"d":1},"logo":{"t":"image/png","b":"AAEC"}}`, `{}`, `{"accounts":{"d":1}}`,
	} {
		r.items[i].parts = json.RawMessage(parts)
	}
	r.items[3].payload = nil
	r.body = fmt.Appendf(nil, `{"items":%s}`, writeItems(r.items))
	a, err := n.answered(ctx, r)
	if err != nil {
		return err
	}
	slots := make([]slot, len(r.items))
	for i := range slots {
		if slots[i], err = a.slot(i); err != nil {
			return err
		}
	}
	if s := slots[0]; !sameJSON(s.D, []byte(`{"n":[1,null]}`)) {
		return differs(`the part as the result, {"n":[1,null]}`, "%s", s)
	}
	if s := slots[1]; !s.holds(3) || s.T != "image/png" {
		return differs("the part as a binary result, 3 bytes of image/png", "%s", s)
	}
	if s := slots[2]; !sameJSON(s.D, []byte(`null`)) {
		return differs("the result null, since the part is not there", "%s", s)
	}
	return nil
}

func checkFailChunk(ctx context.Context, n *node) error {
	for _, retry := range []bool{true, false} {
		want := slotError{"db_down", "no connection\nat all", retry}
		a, err := n.obeyed(ctx, order{"do": "echo", "value": 1},
			order{"do": "fail-chunk", "code": want.Code, "message": want.Message, "retry": retry},
			order{"do": "echo", "value": 3})
		if err != nil {
			return err
		}
		if f := a.failure(); f == nil || *f != want || a.sent() != 1 || a.final() != 1 {
			return differs(fmt.Sprintf("one slot, Tranche-Final: 1 and the failure: %s", &want), "%s", a)
		}
		last := a.messages[len(a.messages)-1].header
		if last.Get(wire.HeaderErrorCode) != want.Code || last.Get(wire.HeaderError) == "" {
			return differs("Nats-Service-Error-Code: db_down and Nats-Service-Error, in one line", "%q and %q",
				last.Get(wire.HeaderErrorCode), last.Get(wire.HeaderError))
		}
	}
	return nil
}
