package conformance

import (
	"context"
	"encoding/base64"
	"fmt"
	"strings"

	"github.com/tranchehq/tranche/endpoints/wire"
)

func outsizeChecks() []check {
	return []check{
		{"big", "more than max_payload is sent in several messages", "Sizes", needContract, checkBig},
		{"pieces", "one result that fits no message comes in pieces, or is an error slot", "Results in pieces", needContract,
			checkPieces},
		{"too-large", "one result of over 64 MiB becomes an error slot", "Sizes", needContract, checkTooLarge},
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

// checkPieces asks for a text that does not fit a message, bytes in several pieces, and what fits. A service need not
// send pieces; then it says so.
func checkPieces(ctx context.Context, n *node) error {
	text, size := int(n.nc.MaxPayload()), 2*int(n.nc.MaxPayload())+1
	r := orders(order{"do": "echo", "value": 1}, order{"do": "big", "n": text},
		order{"do": "bytes", "n": size, "type": "application/pdf"}, order{"do": "echo", "value": 3})
	a, err := n.answered(ctx, r)
	if err != nil {
		return err
	}
	if err := a.exactly(r); err != nil {
		return err
	}
	slots := a.slots()
	for _, m := range a.messages {
		if wire.HeaderSize(m.header)+len(m.data) > int(n.nc.MaxPayload()) || m.piece == nil && wire.IsPiece(m.header) {
			_, err := wire.ParsePiece(m.subject, m.header, m.data)
			return differs("pieces that a node can read", "%v", err)
		}
	}
	if s := slots[1]; !noPieces(s) && string(s.D) != `"`+strings.Repeat("x", text)+`"` {
		return differs(fmt.Sprintf("the text of %d bytes as application/json, or the error result_too_large", text+2),
			"%s", s)
	}
	want := make([]byte, size)
	for i := range want {
		want[i] = byte(i)
	}
	s := slots[2]
	right := s.B != nil && *s.B == base64.StdEncoding.EncodeToString(want) && s.T == "application/pdf"
	if !noPieces(s) && !right {
		return differs(fmt.Sprintf("%d bytes of application/pdf, or the error result_too_large", size), "%s", s)
	}
	return oneFinal(a)
}

// noPieces reports whether a slot says that the service sends no pieces.
func noPieces(s slot) bool { return s.E != nil && s.E.Code == wire.CodeResultTooLarge && !s.E.Retry }

func checkTooLarge(ctx context.Context, n *node) error {
	n.more = 4 * patience //nolint:mnd // it makes 64 MiB, beside whatever else its machine does
	defer func() { n.more = 0 }()
	a, err := n.obeyed(ctx, order{"do": "echo", "value": 1}, order{"do": "big", "n": wire.MaxResult},
		order{"do": "echo", "value": 3})
	if err != nil {
		return err
	}
	s, err := a.slot(1)
	if err != nil {
		return err
	}
	if !noPieces(s) {
		return differs("the error result_too_large, not to be retried", "%s", s)
	}
	if a.sent() != 3 {
		return differs("slots for the other items all the same", "%s", a)
	}
	return nil
}
