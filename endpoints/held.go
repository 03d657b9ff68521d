package endpoints

import (
	"bytes"
	"fmt"

	"github.com/tranchehq/tranche/endpoints/wire"
)

// MaxHeld bounds the bytes of the answers to one chunk that a wrapper holds.
const MaxHeld = 64 << 20

// heldDepth is deeper than what the JSON encoder writes.
const heldDepth = 1 << 16

// held is what wrappers keep back of the answers to a chunk. Its methods are those of answers.
type held struct {
	bodies []heldBody
	bytes  int
	marks  []mark // one for each Hold that is not settled
	over   *wire.SlotError
}

// heldBody is a message that is not sent yet, without its end; or a result that will go in pieces.
type heldBody struct {
	buf   *bytes.Buffer // nil: large
	here  int
	large *largeResult
}

// mark is what had been answered when a Hold began.
type mark struct{ bodies, bytes, total, errors int }

// holding returns how many Holds are not settled.
func (a *answers) holding() int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.held.marks)
}

// hold begins to keep answers back. What was answered before is sent, or stays with the Hold that keeps it.
func (a *answers) hold() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.flush()
	a.held.marks = append(a.held.marks, mark{len(a.held.bodies), a.held.bytes, a.total, a.errors})
}

// stash puts the message that is being written to those held.
func (a *answers) stash() {
	h := &a.held
	if h.over != nil { // it will be dropped
		recycle(a.buf)
		a.buf, a.here = nil, 0
		return
	}
	size := a.buf.Len()
	h.bodies = append(h.bodies, heldBody{buf: a.buf, here: a.here})
	a.buf, a.here = nil, 0
	a.heldMore(size)
}

// heldMore counts what was put to what is held, and ends the handler when that is too much.
func (a *answers) heldMore(size int) {
	h := &a.held
	h.bytes += size
	if h.bytes > MaxHeld {
		h.over = wire.NewSlotError(wire.CodeHeldTooLarge,
			fmt.Sprintf("the answers to the chunk take over %d MiB, which is the most "+
				"that a wrapper such as a transaction holds; use smaller chunks for the endpoint", MaxHeld>>20), false)
		a.giveUp(h.over)
	}
}

// unlessOverflowed returns err, or the error of a Hold that was asked to keep too much.
func (a *answers) unlessOverflowed(err error) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.held.over != nil {
		return ownError{a.held.over}
	}
	return err
}

// settle ends the Holds after the first n: their answers are dropped, or go on to where they would have gone.
func (a *answers) settle(n int, drop bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
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

// forget takes back what was answered since m.
func (a *answers) forget(m mark) {
	h := &a.held
	for _, body := range h.bodies[m.bodies:] {
		if body.buf != nil {
			recycle(body.buf)
		}
	}
	clear(h.bodies[m.bodies:])
	h.bodies, h.bytes = h.bodies[:m.bodies], m.bytes
	if a.buf != nil {
		recycle(a.buf)
		a.buf, a.here = nil, 0
	}
	a.total, a.errors = m.total, m.errors
}

// heldSlots reads what has been answered since the last Hold.
func (a *answers) heldSlots() (slots []wire.Slot, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	h := &a.held
	if len(h.marks) == 0 {
		return nil, nil
	}
	last := h.marks[len(h.marks)-1]
	slots = make([]wire.Slot, 0, a.total-last.total)
	for _, body := range h.bodies[last.bodies:] {
		if r := body.large; r != nil {
			slots = append(slots, wire.Slot{Ordinal: r.ordinal, Data: r.data, ContentType: r.contentType})
		} else if slots, err = appendSlots(slots, body.buf); err != nil {
			return nil, err
		}
	}
	if a.buf == nil || a.here == 0 {
		return slots, nil
	}
	return appendSlots(slots, a.buf)
}

// appendSlots reads the slots of a message that has no end yet.
func appendSlots(slots []wire.Slot, buf *bytes.Buffer) ([]wire.Slot, error) {
	size := buf.Len()
	defer buf.Truncate(size)
	buf.WriteString(replyClose)
	in := wire.NewBodyReader(buf.Bytes(), heldDepth)
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
