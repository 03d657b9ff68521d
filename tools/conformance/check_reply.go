package conformance

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
)

func repeated() []string {
	return []string{wire.HeaderVersion, wire.HeaderRun, wire.HeaderSlice, wire.HeaderStep,
		wire.HeaderAttempt, wire.HeaderGeneration, wire.HeaderMode}
}

func checkHeaders(ctx context.Context, n *node) {
	for _, mode := range []string{"batch", "single", ""} {
		r := n.sample(1)
		r.header.Set(wire.HeaderStep, "4")
		r.header.Set(wire.HeaderAttempt, "3")
		r.header.Set(wire.HeaderGeneration, "2")
		if r.header.Set(wire.HeaderMode, mode); mode == "" {
			r.header.Del(wire.HeaderMode)
		}
		a := n.answered(ctx, r)
		for _, m := range a.messages {
			sameHeaders(r, m)
		}
	}
}

func sameHeaders(r *request, m *message) {
	for _, name := range repeated() {
		want, got := r.header.Get(name), m.header.Get(name)
		if name == wire.HeaderMode && want == "" && got == "batch" {
			continue // the meaning of a missing one
		}
		if got != want {
			fail(fmt.Sprintf("%s %q, as in the request", name, want), "%q", got)
		}
	}
}

func checkTraceparent(ctx context.Context, n *node) {
	r := n.sample(2)
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	r.header[wire.HeaderTrace] = []string{trace}
	a := n.answered(ctx, r)
	for _, m := range a.messages {
		got := m.header[wire.HeaderTrace]
		// A service that records spans continues the same trace.
		if len(got) != 1 || !strings.HasPrefix(got[0], trace[:35]) {
			fail("traceparent "+trace+", in lower case, on each message", "%q", got)
		}
	}
}

// checkReadable uses the nodes' parser. It first repairs headers that other checks cover.
func checkReadable(ctx context.Context, n *node) {
	r := n.sample(20)
	a := n.answered(ctx, r)
	for _, m := range a.messages {
		header := maps.Clone(m.header)
		for _, name := range repeated() {
			header[name] = r.header[name]
		}
		delete(header, wire.HeaderFinal)
		if m.failure != nil {
			header[wire.HeaderFinal] = []string{strconv.Itoa(len(m.slots))}
		}
		if err := readable(m, header); err != nil {
			fail("messages that a node can read", "%v", err)
		}
	}
}

func readable(m *message, header nats.Header) (err error) {
	if wire.IsPiece(header) {
		_, err = wire.ParsePiece(m.subject, header, m.data)
	} else {
		_, err = wire.ParseReply(m.subject, header, m.data, wire.Limits{})
	}
	return err
}

func checkFinal(ctx context.Context, n *node) { oneFinal(n.answered(ctx, n.sample(50))) }

// oneFinal fails unless one message is final, with the number of slots.
func oneFinal(a *answer) {
	expected := fmt.Sprintf("one message with Tranche-Final: %d, the number of slots in all messages", a.sent())
	finals := 0
	for _, m := range a.messages {
		value := m.header.Get(wire.HeaderFinal)
		switch {
		case value == "":
		case m.final != a.sent():
			fail(expected, "Tranche-Final %q", value)
		default:
			finals++
		}
	}
	if finals != 1 {
		fail(expected, "%d such messages of %d", finals, len(a.messages))
	}
}

func checkTook(ctx context.Context, n *node) {
	asked := time.Now()
	a := n.answered(ctx, n.sample(3))
	const clocks = 100 * time.Millisecond // clocks may differ
	took := float64(time.Since(asked)+clocks) / float64(time.Millisecond)
	for _, m := range a.messages {
		value, there := m.header[wire.HeaderTook]
		if !there {
			continue
		}
		ms, err := strconv.ParseFloat(value[0], 64)
		if err != nil || math.IsNaN(ms) || ms < 0 || ms > took {
			fail(fmt.Sprintf("no Tranche-Took, or one of 0 to %.0f, the milliseconds until the reply was here", took),
				"%q", value[0])
		}
	}
}

// checkMessageIDs sends one slice twice, as if a service died before acknowledging.
func checkMessageIDs(ctx context.Context, n *node) {
	r := n.sample(3)
	first := n.answered(ctx, r)
	r.header.Set(wire.HeaderMsgID, uuid.NewString())
	n.ask(ctx, r)
	second, err := n.answer(ctx, r, len(first.messages))
	if err != nil {
		fail("a second complete reply to a redelivered request, with new message IDs",
			"none that the stream would take: its ids were those of the first")
	}
	stop(second.exactly(r))
	for _, m := range append(first.messages, second.messages...) {
		if m.id() == "" || strings.Contains(m.id(), r.slice()) {
			fail("a random Nats-Msg-Id on each message", "%q for slice %s", m.id(), r.slice())
		}
	}
}

func checkReplyToStage(ctx context.Context, n *node) {
	subject := fmt.Sprintf("tranche.stage.%s.1.0.%s", caller, n.config.Endpoint)
	n.repliesOn(ctx, n.sample(3), subject)
	n.poll(ctx, patience, func() bool { return must(n.held(ctx, wire.StreamStage, subject)) > 0 },
		"the reply in stream "+wire.StreamStage, "nothing there")
}

func checkReplyToCall(ctx context.Context, n *node) {
	r := n.sample(1)
	r.header.Set(wire.HeaderMode, "single")
	n.repliesOn(ctx, r, fmt.Sprintf("tranche.call.%s.%s.%s", caller, uuid.NewString(), n.config.Endpoint))
}

func (n *node) repliesOn(ctx context.Context, r *request, subject string) {
	r.header.Set(wire.HeaderReplyTo, subject)
	a := n.answered(ctx, r)
	for _, m := range a.messages {
		if m.subject != subject {
			fail("the reply on "+subject, "a message on %s", m.subject)
		}
	}
	stop(a.exactly(r))
}

func checkReplyToRefused(ctx context.Context, n *node) {
	for _, subject := range []string{
		"tranche.stage." + caller + ".1.0.other-endpoint", "tranche.call." + caller + ".token.other-endpoint",
		"tranche.reply.other-endpoint", "tranche.call." + caller + "." + n.config.Endpoint,
		"tranche.stage." + caller + ".first.0." + n.config.Endpoint, "tranche.stage." + caller + ".1.>." + n.config.Endpoint,
		"tranche.stage." + caller + ".1.0.more." + n.config.Endpoint,
	} {
		r := n.sample(1)
		r.header.Set(wire.HeaderReplyTo, subject)
		n.ask(ctx, r)
		expected := "no reply, and +TERM, for a request with Tranche-Reply-To: " + subject
		ack := n.settled(ctx, r)
		if a := n.now(r); len(a.messages) > 0 {
			fail(expected, "a reply on %s", a.messages[0].subject)
		}
		if ack.kind != ackRemove {
			fail(expected, "%s", ack.text)
		}
	}
}

func (n *node) obeyed(ctx context.Context, list ...order) *answer {
	return n.answered(ctx, orders(list...))
}

func checkResults(ctx context.Context, n *node) {
	var list []order
	values := []string{
		`null`, `true`, `0`, `-1.5`, `"text"`, `""`, `[]`, `{}`, `"\"quoted\" \\ \n ключ 鍵 🗝"`,
		`{"deep":[{"er":[1,[2,[3,null]]]}],"d":1,"e":{"code":"none"}}`, `123456789012`, `1e3`,
	}
	for _, value := range values {
		list = append(list, order{"do": "echo", "value": json.RawMessage(value)})
	}
	a := n.obeyed(ctx, list...)
	for ordinal, value := range values {
		s := a.slot(ordinal)
		if !sameJSON(s.D, []byte(value)) {
			fail("the result "+value, "%s", s)
		}
	}
}

func checkErrorSlots(ctx context.Context, n *node) {
	a := n.obeyed(ctx, order{"do": "echo", "value": 1},
		order{"do": "fail", "code": "overdrawn", "message": `the "balance" is −3 €`},
		order{"do": "retry", "code": "row.locked-1", "message": "try again"})
	for ordinal, want := range map[int]slotError{
		1: {"overdrawn", `the "balance" is −3 €`, false}, 2: {"row.locked-1", "try again", true},
	} {
		s := a.slot(ordinal)
		if s.E == nil || *s.E != want {
			fail(fmt.Sprintf("an error slot with %s", &want), "%s", s)
		}
	}
	if f := a.failure(); f != nil {
		fail("no failure of the chunk: each item has a slot", "%s", f)
	}
}

func checkMissing(ctx context.Context, n *node) {
	a := n.obeyed(ctx, order{"do": "echo", "value": 1}, order{"do": "skip"}, order{"do": "echo", "value": 3})
	if _, there := a.slots()[1]; there || a.sent() != 2 || a.final() != 2 || a.failure() != nil {
		fail("slots for ordinals 0 and 2, Tranche-Final: 2 and no failure", "%s", a)
	}
	nothing := n.obeyed(ctx, order{"do": "skip"})
	if nothing.sent() != 0 || nothing.final() != 0 {
		fail("an empty reply with Tranche-Final: 0", "%s", nothing)
	}
}

func checkTwice(ctx context.Context, n *node) {
	a := n.obeyed(ctx, order{"do": "twice"}, order{"do": "echo", "value": 1})
	s := a.slot(0)
	if !sameJSON(s.D, []byte(`"first"`)) {
		fail(`"first" as the first slot of the item`, "%s", s)
	}
	if a.sent() != 2 || a.final() != 2 {
		fail("one slot for each item, and Tranche-Final: 2", "%s", a)
	}
}

func checkPartial(ctx context.Context, n *node) {
	r := orders(order{"do": "echo", "value": 0}, order{"do": "partial"}, order{"do": "echo", "value": 2},
		order{"do": "partial"}, order{"do": "slow", "ms": 100})
	a := n.whole(ctx, r)
	if len(a.messages) < 3 {
		n.retains = true
		fail(`3 messages: two of "partial" and the final one`, "%s", a)
	}
	oneFinal(a)
}

func checkBinary(ctx context.Context, n *node) {
	a := n.obeyed(ctx, order{"do": "bytes", "n": 1000, "type": "application/pdf"},
		order{"do": "bytes", "n": 1, "type": "image/png"}, order{"do": "bytes", "n": 0, "type": "text/plain"},
		order{"do": "bytes", "n": 3})
	for ordinal, want := range []struct {
		size int
		kind string
	}{{1000, "application/pdf"}, {1, "image/png"}, {0, "text/plain"}, {3, wire.DefaultBinaryType}} {
		s := a.slot(ordinal)
		if !s.holds(want.size) || s.T != want.kind && (s.T != "" || want.kind != wire.DefaultBinaryType) {
			fail(fmt.Sprintf(`"b" with the bytes 0, 1, 2, … of %d, in base64 with padding, and "t" %s`, want.size,
				want.kind), "%s", s)
		}
	}
}

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

// checkParts sends items with parts, without a requested part, and with parts only, to be answered in any way.
func checkParts(ctx context.Context, n *node) {
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
	a := n.answered(ctx, r)
	slots := make([]slot, len(r.items))
	for i := range slots {
		slots[i] = a.slot(i)
	}
	if s := slots[0]; !sameJSON(s.D, []byte(`{"n":[1,null]}`)) {
		fail(`the part as the result, {"n":[1,null]}`, "%s", s)
	}
	if s := slots[1]; !s.holds(3) || s.T != "image/png" {
		fail("the part as a binary result, 3 bytes of image/png", "%s", s)
	}
	if s := slots[2]; !sameJSON(s.D, []byte(`null`)) {
		fail("the result null, since the part does not exist", "%s", s)
	}
}

// checkPartRefs refers to a part, and gives it in two answers, after an error that passes.
func checkPartRefs(ctx context.Context, n *node) {
	part := make([]byte, 1000)
	for i := range part {
		part[i] = byte(i)
	}
	ref := wire.RefTo(part)
	r := orders(order{"do": "part", "name": "logo"})
	r.items[0].parts = fmt.Appendf(nil, `{"logo":{"t":"image/png","r":{"bytes":%d,"sha256":%q}}}`, ref.Bytes, ref.SHA256)
	r.body = fmt.Appendf(nil, `{"items":%s}`, writeItems(r.items))
	var asked int
	sub := must(n.nc.Subscribe(wire.PartSubject(n.config.Endpoint), func(msg *nats.Msg) {
		var q wire.PartQuery
		answer := &nats.Msg{Header: nats.Header{wire.HeaderErrorCode: {wire.CodePartGone}}}
		if asked++; asked == 1 {
			answer.Header.Set(wire.HeaderErrorCode, wire.CodePartUnavailable)
		} else if q.Read(msg.Data) == nil && q.Slice.String() == r.slice() && q.Step == "logo" && q.PartRef == *ref {
			answer = &nats.Msg{Data: part[q.From:min(q.From+600, ref.Bytes)]}
		}
		_ = msg.RespondMsg(answer) // without it the service asks again
	}))
	defer func() { _ = sub.Unsubscribe() }()
	if s := n.answered(ctx, r).slot(0); !s.holds(len(part)) || s.T != "image/png" {
		fail("the part as a binary result, 1000 bytes of image/png", "%s", s)
	}
}

func checkFailChunk(ctx context.Context, n *node) {
	for _, retry := range []bool{true, false} {
		want := slotError{"db_down", "no connection\nat all", retry}
		a := n.obeyed(ctx, order{"do": "echo", "value": 1},
			order{"do": "fail-chunk", "code": want.Code, "message": want.Message, "retry": retry},
			order{"do": "echo", "value": 3})
		if f := a.failure(); f == nil || *f != want || a.sent() != 1 || a.final() != 1 {
			fail(fmt.Sprintf("one slot, Tranche-Final: 1 and the failure: %s", &want), "%s", a)
		}
		last := a.messages[len(a.messages)-1].header
		if last.Get(wire.HeaderErrorCode) != want.Code || last.Get(wire.HeaderError) == "" {
			fail("Nats-Service-Error-Code: db_down and Nats-Service-Error, in one line", "%q and %q",
				last.Get(wire.HeaderErrorCode), last.Get(wire.HeaderError))
		}
	}
}
