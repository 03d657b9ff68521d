package conformance

import (
	"context"
	"fmt"

	"github.com/tranchehq/tranche/endpoints/wire"
)

func outsizeChecks() []check {
	return []check{
		{"big", "more than max_payload is sent in several messages", "Sizes", needContract, checkBig},
		{"too-large", "one result that fits no message becomes an error slot", "Sizes", needContract, checkTooLarge},
	}
}

func checkBig(ctx context.Context, n *node) error {
	const count = 25
	size := int(n.nc.MaxPayload()) / 10
	var list []order
	for range count {
		list = append(list, order{"do": "big", "n": size})
	}
	r := orders(list...)
	a, err := n.answered(ctx, r)
	if err != nil {
		return err
	}
	if err := a.exactly(r); err != nil {
		return err
	}
	for ordinal := range count {
		s, err := a.slot(ordinal)
		if err != nil {
			return err
		}
		if len(s.D) != size+2 {
			return differs(fmt.Sprintf("a text of %d characters", size), "%s", s)
		}
	}
	return oneFinal(a)
}

func checkTooLarge(ctx context.Context, n *node) error {
	a, err := n.obeyed(ctx, order{"do": "echo", "value": 1}, order{"do": "big", "n": n.nc.MaxPayload()},
		order{"do": "echo", "value": 3})
	if err != nil {
		return err
	}
	s, err := a.slot(1)
	if err != nil {
		return err
	}
	if s.E == nil || s.E.Code != wire.CodeResultTooLarge || s.E.Retry {
		return differs("the error result_too_large, not to be retried", "%s", s)
	}
	if a.sent() != 3 {
		return differs("slots for the other items all the same", "%s", a)
	}
	return nil
}
