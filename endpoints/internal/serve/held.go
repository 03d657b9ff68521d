package serve

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"fmt"
	"strings"

	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// MaxHeld bounds the bytes of answers that wrappers hold for one chunk.
const MaxHeld = 64 << 20

// HeldDepth exceeds the depth that the JSON encoder writes.
const HeldDepth = 1 << 16

type held struct {
	bodies []heldBody
	bytes  int
	marks  []mark // one per unsettled Hold
	over   *wire.SlotError
}

// heldBody is an unsent message without its end, or a large result.
type heldBody struct {
	buf   *bytes.Buffer // nil for a large result
	here  int
	large *largeResult
}

type mark struct{ bodies, bytes, total, errors int }

// Holding returns the number of unsettled Holds.
func (a *Writer) Holding() int {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	return len(a.held.marks)
}

// Hold starts holding answers back. Earlier answers are sent, or stay with an outer Hold.
func (a *Writer) Hold() {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	a.Flush()
	a.held.marks = append(a.held.marks, mark{len(a.held.bodies), a.held.bytes, a.Total, a.Errors})
}

func (a *Writer) stash() {
	h := &a.held
	if h.over != nil { // it will be dropped
		recycle(a.Buf)
		a.Buf, a.here = nil, 0
		return
	}
	size := a.Buf.Len()
	h.bodies = append(h.bodies, heldBody{buf: a.Buf, here: a.here})
	a.Buf, a.here = nil, 0
	a.heldMore(size)
}

// heldMore counts held bytes and cancels the handler if there are too many.
func (a *Writer) heldMore(size int) {
	h := &a.held
	h.bytes += size
	if h.bytes > MaxHeld {
		h.over = wire.NewSlotError(wire.CodeHeldTooLarge,
			fmt.Sprintf("the answers to the chunk take over %d MiB, which is the most "+
				"that a wrapper such as a transaction holds; use smaller chunks for the endpoint", MaxHeld>>20), false)
		a.GiveUp(h.over)
	}
}

// UnlessOverflowed returns err, or an error if a Hold held too much.
func (a *Writer) UnlessOverflowed(err error) error {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if a.held.over != nil {
		return OwnError{Err: a.held.over}
	}
	return err
}

// Settle ends the Holds after the first n: their answers are dropped, or sent or passed to the outer Hold.
func (a *Writer) Settle(n int, drop bool) {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	h := &a.held
	if len(h.marks) <= n {
		return
	}
	first := h.marks[n]
	h.marks = h.marks[:n]
	switch {
	case drop || h.over != nil:
		a.forget(first)
	case n == 0:
		bodies := h.bodies
		h.bodies, h.bytes = nil, 0
		for _, body := range bodies {
			if body.large != nil {
				a.shipLarge(body.large)
			} else {
				a.ship(body.buf)
			}
		}
	}
}

func (a *Writer) forget(m mark) {
	h := &a.held
	for _, body := range h.bodies[m.bodies:] {
		if body.buf != nil {
			recycle(body.buf)
		}
	}
	clear(h.bodies[m.bodies:])
	h.bodies, h.bytes = h.bodies[:m.bodies], m.bytes
	if a.Buf != nil {
		recycle(a.Buf)
		a.Buf, a.here = nil, 0
	}
	a.Total, a.Errors = m.total, m.errors
}

// HeldSlots returns the answers since the last Hold.
func (a *Writer) HeldSlots() (slots []wire.Slot, err error) {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	h := &a.held
	if len(h.marks) == 0 {
		return nil, nil
	}
	last := h.marks[len(h.marks)-1]
	slots = make([]wire.Slot, 0, a.Total-last.total)
	for _, body := range h.bodies[last.bodies:] {
		if r := body.large; r != nil {
			slots = append(slots, wire.Slot{Ordinal: r.ordinal, Data: r.data, ContentType: r.contentType})
		} else if slots, err = appendSlots(slots, body.buf); err != nil {
			return nil, err
		}
	}
	if a.Buf == nil || a.here == 0 {
		return slots, nil
	}
	return appendSlots(slots, a.Buf)
}

// appendSlots parses the slots of a message without its end.
func appendSlots(slots []wire.Slot, buf *bytes.Buffer) ([]wire.Slot, error) {
	size := buf.Len()
	defer buf.Truncate(size)
	buf.WriteString(ReplyClose)
	in := wire.NewBodyReader(buf.Bytes(), HeldDepth)
	in.Open('{')
	in.Name()
	in.Open('[')
	for in.More() {
		slots = append(slots, wire.ScanSlot(in))
	}
	if in.Err != nil {
		return nil, in.Err
	}
	return slots, nil
}

// pieceRoom is the outbox capacity charged per byte of a piece, so that 4 MiB of pieces are in flight. Resending what
// a slow server has not acknowledged only adds load.
const pieceRoom = 4

type largeResult struct {
	ordinal     int
	contentType string // empty for JSON
	data        []byte
}

// large answers an item with a result too large for a message. Only nodes accept those.
func (a *Writer) large(ordinal int, contentType string, data []byte) {
	toNode := strings.HasPrefix(a.Subject, wire.ReplyPrefix)
	switch {
	case !toNode:
		a.Fault(ordinal, wire.NewSlotError(wire.CodeResultTooLarge, fmt.Sprintf(
			"the result has %d bytes and does not fit a message of %d; only a run's step of kind endpoint takes larger ones, "+
				"not a flow or a caller: raise the NATS server's max_payload (16 MiB count), or store the result "+
				"elsewhere and reply with where it is", len(data), a.Limit), false))
	case len(data) > wire.MaxResult:
		a.Fault(ordinal, wire.NewSlotError(wire.CodeResultTooLarge, fmt.Sprintf(
			"the result has %d bytes, and %d are the most; store it elsewhere and reply with where it is", len(data),
			wire.MaxResult), false))
	case (len(data)-1)/a.pieceSize() >= wire.MaxPieces:
		a.Fault(ordinal, wire.NewSlotError(wire.CodeResultTooLarge, fmt.Sprintf(
			"the result has %d bytes, which are more than %d pieces of %d; raise the NATS server's max_payload", len(data),
			wire.MaxPieces, a.pieceSize()), false))
	case len(a.held.marks) > 0:
		a.stashLarge(&largeResult{ordinal, contentType, bytes.Clone(data)})
		a.Total++
	default:
		a.Total++
		a.shipLarge(&largeResult{ordinal, contentType, data})
	}
}

func (a *Writer) pieceSize() int { return max(min(a.Limit, wire.DefaultPiece), 1) }

// shipLarge sends the pieces of a result. It returns once all are being sent or the reply is broken. data may be
// modified afterwards: pieces are copied as the outbox has capacity.
func (a *Writer) shipLarge(r *largeResult) {
	size := a.pieceSize()
	whole := wire.Whole{Ordinal: r.ordinal, Pieces: (len(r.data) + size - 1) / size, Bytes: int64(len(r.data)),
		SHA256: sha256.Sum256(r.data), ContentType: r.contentType}
	whole.ContentType = cmp.Or(whole.ContentType, wire.ContentTypeJSON)
	for n := 1; n <= whole.Pieces && a.err == nil; n++ {
		data := r.data[(n-1)*size : min(n*size, len(r.data))]
		if err := a.Out.Reserve(a.Ctx, pieceRoom*len(data)); err != nil {
			a.Broken(err)
			return
		}
		a.post(a.piece(&whole, n, bytes.Clone(data)), pieceRoom*len(data), nil)
	}
}

func (a *Writer) piece(whole *wire.Whole, number int, data []byte) *nats.Msg {
	msg := a.plain(data)
	msg.Header[wire.HeaderPiece] = []string{whole.Header(number)}
	msg.Header[wire.HeaderContentType] = []string{whole.ContentType}
	return msg
}

func (a *Writer) stashLarge(r *largeResult) {
	a.Flush() // keep the order of answers
	if a.held.over == nil {
		a.held.bodies = append(a.held.bodies, heldBody{large: r})
		a.heldMore(len(r.data))
	}
}
