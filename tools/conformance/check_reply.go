package conformance

import (
	"context"
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

func replyChecks() []check {
	const several = "Several messages, and the final one"
	return []check{
		{"headers", "the seven headers are repeated", "Headers", 0, checkHeaders},
		{"traceparent", "the trace context is copied", "Headers", 0, checkTraceparent},
		{"readable", "a node can read every message", "What a node does with a reply", 0, checkReadable},
		{"final", "one message has Tranche-Final, the number of all slots", several, 0, checkFinal},
		{"took", "Tranche-Took, where a message has it, is a number of milliseconds", "Headers", 0, checkTook},
		{"message-ids", "each message has a random Nats-Msg-Id, also when a request is answered again", several, 0,
			checkMessageIDs},
	}
}

// repeated are the headers that a reply repeats.
func repeated() []string {
	return []string{wire.HeaderVersion, wire.HeaderRun, wire.HeaderSlice, wire.HeaderStep,
		wire.HeaderAttempt, wire.HeaderGeneration, wire.HeaderMode}
}

func checkHeaders(ctx context.Context, n *node) error {
	for _, mode := range []string{"batch", "single", ""} {
		r := n.sample(1)
		r.header.Set(wire.HeaderStep, "4")
		r.header.Set(wire.HeaderAttempt, "3")
		r.header.Set(wire.HeaderGeneration, "2")
		if r.header.Set(wire.HeaderMode, mode); mode == "" {
			r.header.Del(wire.HeaderMode)
		}
		a, err := n.answered(ctx, r)
		if err != nil {
			return err
		}
		for _, m := range a.messages {
			if err := sameHeaders(r, m); err != nil {
				return err
			}
		}
	}
	return nil
}

func sameHeaders(r *request, m *message) error {
	for _, name := range repeated() {
		want, got := r.header.Get(name), m.header.Get(name)
		if name == wire.HeaderMode && want == "" && got == "batch" {
			continue // what a missing one means
		}
		if got != want {
			return differs(fmt.Sprintf("%s %q, as in the request", name, want), "%q", got)
		}
	}
	return nil
}

func checkTraceparent(ctx context.Context, n *node) error {
	r := n.sample(2)
	const trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	r.header[wire.HeaderTrace] = []string{trace}
	a, err := n.answered(ctx, r)
	if err != nil {
		return err
	}
	for _, m := range a.messages {
		got := m.header[wire.HeaderTrace]
		// A service that records spans of its own goes on under the same trace.
		if len(got) != 1 || !strings.HasPrefix(got[0], trace[:35]) {
			return differs("traceparent "+trace+", in lower case, on each message", "%q", got)
		}
	}
	return nil
}

// checkReadable reads with the parser of the nodes. The headers that other checks are for are made good first.
func checkReadable(ctx context.Context, n *node) error {
	r := n.sample(20)
	a, err := n.answered(ctx, r)
	if err != nil {
		return err
	}
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
			return differs("messages that a node can read", "%v", err)
		}
	}
	return nil
}

func readable(m *message, header nats.Header) (err error) {
	if wire.IsPiece(header) {
		_, err = wire.ParsePiece(m.subject, header, m.data)
	} else {
		_, err = wire.ParseReply(m.subject, header, m.data, wire.Limits{})
	}
	return err
}

func checkFinal(ctx context.Context, n *node) error {
	a, err := n.answered(ctx, n.sample(50))
	if err != nil {
		return err
	}
	return oneFinal(a)
}

// oneFinal returns an error unless one message is the final one and says how many slots there are.
func oneFinal(a *answer) error {
	expected := fmt.Sprintf("one message with Tranche-Final: %d, the number of slots in all messages", a.sent())
	finals := 0
	for _, m := range a.messages {
		value := m.header.Get(wire.HeaderFinal)
		switch {
		case value == "":
		case m.final != a.sent():
			return differs(expected, "Tranche-Final %q", value)
		default:
			finals++
		}
	}
	if finals != 1 {
		return differs(expected, "%d such messages of %d", finals, len(a.messages))
	}
	return nil
}

// checkTook looks at a header that need not be there.
func checkTook(ctx context.Context, n *node) error {
	asked := time.Now()
	a, err := n.answered(ctx, n.sample(3))
	if err != nil {
		return err
	}
	const clocks = 100 * time.Millisecond // that do not agree
	took := float64(time.Since(asked)+clocks) / float64(time.Millisecond)
	for _, m := range a.messages {
		value, there := m.header[wire.HeaderTook]
		if !there {
			continue
		}
		ms, err := strconv.ParseFloat(value[0], 64)
		if err != nil || math.IsNaN(ms) || ms < 0 || ms > took {
			return differs(fmt.Sprintf("no Tranche-Took, or one of 0 to %.0f, the milliseconds until the reply was here", took),
				"%q", value[0])
		}
	}
	return nil
}

// checkMessageIDs asks for one slice twice, as when a service died before it acknowledged.
func checkMessageIDs(ctx context.Context, n *node) error {
	r := n.sample(3)
	first, err := n.answered(ctx, r)
	if err != nil {
		return err
	}
	r.header.Set(wire.HeaderMsgID, uuid.NewString())
	if err := n.ask(ctx, r); err != nil {
		return err
	}
	second, err := n.answer(ctx, r, len(first.messages))
	if err != nil {
		return differs("a second whole reply to a request that came again, under message ids of its own",
			"none that the stream would take: its ids were those of the first")
	}
	if err := second.exactly(r); err != nil {
		return err
	}
	for _, m := range append(first.messages, second.messages...) {
		if m.id() == "" || strings.Contains(m.id(), r.slice()) {
			return differs("a random Nats-Msg-Id on each message", "%q for slice %s", m.id(), r.slice())
		}
	}
	return nil
}
