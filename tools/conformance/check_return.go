package conformance

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/tranchehq/tranche/endpoints/wire"
)

func returnChecks() []check {
	const section = "Headers"
	return []check{
		{"reply-to-stage", "Tranche-Reply-To a flow: the reply goes there, through JetStream", section, 0, checkReplyToStage},
		{"reply-to-call", "Tranche-Reply-To a caller: the reply goes there", section, 0, checkReplyToCall},
		{"reply-to-refused", "any other Tranche-Reply-To is refused", section, 0, checkReplyToRefused},
	}
}

func checkReplyToStage(ctx context.Context, n *node) error {
	subject := fmt.Sprintf("tranche.stage.%s.1.0.%s", caller, n.config.Endpoint)
	if err := n.repliesOn(ctx, n.sample(3), subject); err != nil {
		return err
	}
	return n.poll(ctx, patience, func() (bool, error) {
		held, err := n.held(ctx, wire.StreamStage, subject)
		return held > 0, err
	}, "the reply in stream "+wire.StreamStage, "nothing there")
}

func checkReplyToCall(ctx context.Context, n *node) error {
	r := n.sample(1)
	r.header.Set(wire.HeaderMode, "single")
	return n.repliesOn(ctx, r, fmt.Sprintf("tranche.call.%s.%s.%s", caller, uuid.NewString(), n.config.Endpoint))
}

// repliesOn asks for a reply on a subject.
func (n *node) repliesOn(ctx context.Context, r *request, subject string) error {
	r.header.Set(wire.HeaderReplyTo, subject)
	a, err := n.answered(ctx, r)
	if err != nil {
		return err
	}
	for _, m := range a.messages {
		if m.subject != subject {
			return differs("the reply on "+subject, "a message on %s", m.subject)
		}
	}
	return a.exactly(r)
}

func checkReplyToRefused(ctx context.Context, n *node) error {
	for _, subject := range []string{
		"tranche.stage." + caller + ".1.0.other-endpoint", "tranche.call." + caller + ".token.other-endpoint",
		"tranche.reply.other-endpoint", "tranche.call." + caller + "." + n.config.Endpoint,
		"tranche.stage." + caller + ".first.0." + n.config.Endpoint, "tranche.stage." + caller + ".1.>." + n.config.Endpoint,
		"tranche.stage." + caller + ".1.0.more." + n.config.Endpoint,
	} {
		r := n.sample(1)
		r.header.Set(wire.HeaderReplyTo, subject)
		if err := n.ask(ctx, r); err != nil {
			return err
		}
		expected := "no reply, and +TERM, for a request with Tranche-Reply-To: " + subject
		ack, err := n.settled(ctx, r)
		if err != nil {
			return err
		}
		if a := n.now(r); len(a.messages) > 0 {
			return differs(expected, "a reply on %s", a.messages[0].subject)
		}
		if ack.kind != ackRemove {
			return differs(expected, "%s", ack.text)
		}
	}
	return nil
}
