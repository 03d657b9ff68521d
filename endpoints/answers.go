package endpoints

import (
	"bytes"
	"context"
	"encoding/base64"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
)

const (
	replyOpen  = `{"slots":[`
	replyClose = `]}`
	// replyReserve is kept free in every reply for the headers that only some messages have.
	replyReserve = 1 << 10
)

// buffers holds the bodies of replies between chunks.
//
//nolint:gochecknoglobals // a pool has no state that anybody could see
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// recycle keeps a buffer for the next body, unless it is a large one.
func recycle(buf *bytes.Buffer) {
	if buf.Cap() <= wire.MaxPooled {
		buffers.Put(buf)
	}
}

// answers writes the slots of one chunk into as few messages as fit, and sends them. All methods but send are called
// with mu held, or are its takers.
type answers struct {
	out     *outbox
	subject string
	header  nats.Header // of every message
	limit   int         // bytes of one body
	flushAt int         // bytes at which a message is sent without being asked
	squeeze int         // bytes from which a body is compressed; 0: never

	// ctx ends when sending must stop. It is kept because Item.Reply, which may send, has none of its own.
	ctx context.Context //nolint:containedctx // see above
	// giveUp ends the handler's context once a message could not be sent.
	giveUp context.CancelCauseFunc

	mu     sync.Mutex
	buf    *bytes.Buffer
	slot   int // where the slot being written starts
	value  int // where its result or error goes
	here   int // slots in buf
	total  int // slots in all messages
	errors int // of those, with an error
	closed bool
	begun  time.Time // when the handler was first called
	// unfinished says that the reply goes on elsewhere: a flow is suspended. There is no final message then.
	unfinished bool
	// faults are the ordinals whose error slots the handler has not decided.
	faults map[int]bool
	held   held  // what wrappers keep back
	err    error // of the first message that could not be sent
	sends  sync.WaitGroup
}

func (a *answers) open() {
	a.buf = buffers.Get().(*bytes.Buffer)
	a.buf.Reset()
	a.buf.WriteString(replyOpen)
	a.here = 0
}

// begin starts the slot of an ordinal, up to where its result or error goes.
func (a *answers) begin(ordinal int) {
	if a.buf == nil {
		a.open()
	}
	a.slot = a.buf.Len()
	b := a.buf.AvailableBuffer()
	if a.here > 0 {
		b = append(b, ',')
	}
	b = append(b, `{"i":`...)
	b = strconv.AppendInt(b, int64(ordinal), 10)
	b = append(b, ',')
	a.buf.Write(b)
	a.value = a.buf.Len()
}

// result writes the slot of an ordinal, or sends the result in pieces when it is too large for a message. result points
// to a handler's Out. On an error nothing was written.
func (a *answers) result(ordinal int, result any) error {
	if b := wire.AsBinary(result); b != nil {
		kind, err := b.TypeOf()
		if err == nil {
			a.binary(ordinal, kind, b.Data)
		}
		return err
	}
	a.begin(ordinal)
	if err := wire.AppendResult(a.buf, result); err != nil {
		a.rollback()
		return err
	}
	if a.fits() {
		a.commit()
		return nil
	}
	written := a.buf.Bytes()
	a.buf = bytes.NewBuffer(bytes.Clone(written[:a.slot])) // what was grown for the result is not kept
	a.large(ordinal, "", bytes.TrimPrefix(written[a.value:], []byte(`"d":`)))
	return nil
}

// binary is result for bytes of a content type.
func (a *answers) binary(ordinal int, contentType string, data []byte) {
	if base64.StdEncoding.EncodedLen(len(data)) < a.limit {
		a.begin(ordinal)
		wire.AppendBytes(a.buf, contentType, data)
		if a.fits() {
			a.commit()
			return
		}
		a.rollback()
	}
	a.large(ordinal, contentType, data)
}

// json is result for JSON that is written already.
func (a *answers) json(ordinal int, data []byte) {
	a.begin(ordinal)
	a.buf.WriteString(`"d":`)
	a.buf.Write(data)
	if a.fits() {
		a.commit()
		return
	}
	a.rollback()
	a.large(ordinal, "", data)
}

// rollback takes back what was written since begin.
func (a *answers) rollback() { a.buf.Truncate(a.slot) }

// fits reports whether the slot that was written since begin fits a message of its own.
func (a *answers) fits() bool {
	return a.buf.Len()-a.slot+len(`}`)+len(replyOpen)+len(replyClose) <= a.limit
}

// commit ends a slot that fits.
func (a *answers) commit() {
	a.buf.WriteByte('}')
	if a.buf.Len()+len(replyClose) > a.limit {
		a.carry()
	}
	a.here++
	a.total++
	if a.buf.Len() >= a.flushAt {
		a.flush()
	}
}

// carry sends what stands before the last slot and moves the slot into a message of its own.
func (a *answers) carry() {
	full, slot := a.buf, a.buf.Bytes()[a.slot:]
	here := a.here
	a.open()
	a.buf.Write(bytes.TrimPrefix(slot, []byte(",")))
	next := a.buf
	full.Truncate(a.slot)
	a.buf, a.here = full, here
	a.flush()
	a.buf, a.here, a.slot = next, 0, len(replyOpen)
}

// fail writes the error slot of an ordinal.
func (a *answers) fail(ordinal int, e *wire.SlotError) {
	a.begin(ordinal)
	a.buf.Write(wire.AppendError(append(a.buf.AvailableBuffer(), `"e":`...), e))
	a.errors++
	a.commit()
}

// write answers an item by a slot that checkAnswer has passed.
func (a *answers) write(slot wire.Slot) {
	if slot.Err != nil {
		a.fail(slot.Ordinal, wire.NewSlotError(slot.Err.Code, slot.Err.Message, slot.Err.Retry))
		return
	}
	if slot.ContentType == "" {
		a.json(slot.Ordinal, slot.Data)
	} else {
		a.binary(slot.Ordinal, slot.ContentType, slot.Data)
	}
}

// flush sends what is in buf, in the background, when there is anything; or keeps it back while a wrapper holds.
func (a *answers) flush() {
	if a.buf == nil || a.here == 0 {
		return
	}
	if len(a.held.marks) > 0 {
		a.stash()
		return
	}
	buf := a.buf
	a.buf, a.here = nil, 0
	a.ship(buf)
}

// ship ends a message and sends it, in the background.
func (a *answers) ship(buf *bytes.Buffer) {
	buf.WriteString(replyClose)
	if err := a.out.reserve(a.ctx, buf.Len()); err != nil {
		a.broken(err)
		return
	}
	a.post(a.message(buf.Bytes()), buf.Len(), buf)
}

// post sends a message, in the background, for which there is room in the outbox. Its buffer, if any, is kept for the
// next.
func (a *answers) post(msg *nats.Msg, room int, buf *bytes.Buffer) {
	a.sends.Go(func() {
		err := a.out.publish(a.ctx, msg)
		a.out.release(room)
		if err != nil {
			a.mu.Lock()
			defer a.mu.Unlock()
			a.broken(err)
			return
		}
		if buf != nil {
			recycle(buf)
		}
	})
}

func (a *answers) broken(err error) {
	if a.err == nil {
		a.err = err
		a.giveUp(err)
	}
}

// message wraps a body. Its Nats-Msg-Id is its own: derived from the slice, it would make the second message of a
// reply, or the reply to a redelivered request, look like a duplicate.
func (a *answers) message(body []byte) *nats.Msg {
	msg := a.plain(body)
	if a.squeeze > 0 && len(body) >= a.squeeze {
		if small := wire.Compress(body); len(small) < len(body) {
			msg.Data = small
			msg.Header[wire.HeaderEncoding] = []string{wire.EncodingZstd}
		}
	}
	return msg
}

// plain is message without compression.
func (a *answers) plain(body []byte) *nats.Msg {
	msg := &nats.Msg{Subject: a.subject, Header: maps.Clone(a.header), Data: body}
	msg.Header[wire.HeaderMsgID] = []string{uuid.NewString()}
	return msg
}

// send ends the reply: it sends the final message, with the failure that speaks for the items without a slot, if any,
// and returns when JetStream has acknowledged every message of the reply. Answers that come later are refused.
func (a *answers) send(failure *wire.SlotError) error {
	if a.unfinished {
		return a.sendRest()
	}
	final := a.final(failure)
	err := a.out.reserve(a.ctx, len(final.Data))
	if err == nil {
		err = a.out.publish(a.ctx, final)
		a.out.release(len(final.Data))
	}
	a.sends.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	if err == nil {
		err = a.err
	}
	if err == nil && a.buf != nil {
		recycle(a.buf)
		a.buf = nil
	}
	return err
}

// sendRest sends what has been answered, and returns when JetStream has acknowledged it.
func (a *answers) sendRest() error {
	a.mu.Lock()
	a.flush()
	a.mu.Unlock()
	a.sends.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

func (a *answers) final(failure *wire.SlotError) *nats.Msg {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	var tail []byte
	if failure != nil {
		tail = wire.AppendError([]byte(`],"error":`), failure)
		tail = append(tail, '}')
	} else {
		tail = []byte(replyClose)
	}
	if a.buf != nil && a.buf.Len()+len(tail) > a.limit {
		a.flush()
	}
	if a.buf == nil {
		a.open()
	}
	a.buf.Write(tail)
	msg := a.message(a.buf.Bytes())
	msg.Header[wire.HeaderFinal] = []string{strconv.Itoa(a.total)}
	a.setTook(msg.Header)
	if failure != nil {
		msg.Header[wire.HeaderErrorCode] = []string{failure.Code}
		msg.Header[wire.HeaderError] = []string{wire.OneLine(wire.Cut(failure.Message, wire.MaxHeaderMessage))}
	}
	return msg
}

// close refuses answers from now on and reports how many slots there are.
func (a *answers) close() (total int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	return a.total
}
