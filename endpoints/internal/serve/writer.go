package serve

import (
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"github.com/tranchehq/tranche/endpoints/wire"
)

const (
	replyOpen = `{"slots":[`
	// ReplyClose ends the body of a reply.
	ReplyClose = `]}`
	// ReplyReserve is left for headers that only some messages have.
	ReplyReserve = 1 << 10
)

// Buffers pools the bodies of replies.
//
//nolint:gochecknoglobals // a pool has no state that anybody could see
var Buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// recycle returns a buffer to the pool unless it is large.
func recycle(buf *bytes.Buffer) {
	if buf.Cap() <= wire.MaxPooled {
		Buffers.Put(buf)
	}
}

// Writer writes the slots of one chunk into as few messages as fit, and sends them. Methods require Mu, except Send,
// Close and those that lock it.
type Writer struct {
	Out     *Outbox
	Subject string
	Header  nats.Header // of every message
	Limit   int         // maximum bytes of a body
	FlushAt int         // bytes at which a message is sent
	Squeeze int         // minimum bytes to compress; 0 disables

	// Ctx ends when sending must stop. It is stored because Item.Reply may send, but has no context.
	Ctx context.Context //nolint:containedctx // see above
	// GiveUp cancels the handler once a message could not be sent.
	GiveUp context.CancelCauseFunc

	Mu     sync.Mutex
	Buf    *bytes.Buffer
	slot   int // start of the current slot
	value  int // start of its result or error
	here   int // slots in Buf
	Total  int // slots in all messages
	Errors int // of those, errors
	Closed bool
	begun  time.Time // first call of the handler
	// Unfinished means that the reply continues elsewhere, because the flow is suspended. There is no final message.
	Unfinished bool
	// faults are ordinals whose error the handler did not choose.
	faults map[int]bool
	held   held  // by wrappers
	err    error // of the first message not sent
	sends  sync.WaitGroup
}

func (a *Writer) open() {
	a.Buf = Buffers.Get().(*bytes.Buffer)
	a.Buf.Reset()
	a.Buf.WriteString(replyOpen)
	a.here = 0
}

func (a *Writer) begin(ordinal int) {
	if a.Buf == nil {
		a.open()
	}
	a.slot = a.Buf.Len()
	b := a.Buf.AvailableBuffer()
	if a.here > 0 {
		b = append(b, ',')
	}
	b = append(b, `{"i":`...)
	b = strconv.AppendInt(b, int64(ordinal), 10)
	b = append(b, ',')
	a.Buf.Write(b)
	a.value = a.Buf.Len()
}

// Result writes a slot, or sends the result in pieces if it is too large for a message. result points to a handler's
// Out. With an error, nothing was written.
func (a *Writer) Result(ordinal int, result any) error {
	if b := wire.AsBinary(result); b != nil {
		kind, err := b.TypeOf()
		if err == nil {
			a.binary(ordinal, kind, b.Data)
		}
		return err
	}
	a.begin(ordinal)
	if err := wire.AppendResult(a.Buf, result); err != nil {
		a.rollback()
		return err
	}
	if a.fits() {
		a.commit()
		return nil
	}
	written := a.Buf.Bytes()
	a.Buf = bytes.NewBuffer(bytes.Clone(written[:a.slot])) // drop the capacity grown for the result
	a.large(ordinal, "", bytes.TrimPrefix(written[a.value:], []byte(`"d":`)))
	return nil
}

func (a *Writer) binary(ordinal int, contentType string, data []byte) {
	if base64.StdEncoding.EncodedLen(len(data)) < a.Limit {
		a.begin(ordinal)
		wire.AppendBytes(a.Buf, contentType, data)
		if a.fits() {
			a.commit()
			return
		}
		a.rollback()
	}
	a.large(ordinal, contentType, data)
}

func (a *Writer) json(ordinal int, data []byte) {
	a.begin(ordinal)
	a.Buf.WriteString(`"d":`)
	a.Buf.Write(data)
	if a.fits() {
		a.commit()
		return
	}
	a.rollback()
	a.large(ordinal, "", data)
}

func (a *Writer) rollback() { a.Buf.Truncate(a.slot) }

// fits reports whether the current slot fits in an empty message.
func (a *Writer) fits() bool {
	return a.Buf.Len()-a.slot+len(`}`)+len(replyOpen)+len(ReplyClose) <= a.Limit
}

func (a *Writer) commit() {
	a.Buf.WriteByte('}')
	if a.Buf.Len()+len(ReplyClose) > a.Limit {
		a.carry()
	}
	a.here++
	a.Total++
	if a.Buf.Len() >= a.FlushAt {
		a.Flush()
	}
}

// carry sends what precedes the current slot, and moves the slot to a new message.
func (a *Writer) carry() {
	full, slot := a.Buf, a.Buf.Bytes()[a.slot:]
	here := a.here
	a.open()
	a.Buf.Write(bytes.TrimPrefix(slot, []byte(",")))
	next := a.Buf
	full.Truncate(a.slot)
	a.Buf, a.here = full, here
	a.Flush()
	a.Buf, a.here, a.slot = next, 0, len(replyOpen)
}

// Fail writes an error slot.
func (a *Writer) Fail(ordinal int, e *wire.SlotError) {
	a.begin(ordinal)
	a.Buf.Write(wire.AppendError(append(a.Buf.AvailableBuffer(), `"e":`...), e))
	a.Errors++
	a.commit()
}

// Write writes a slot that checkAnswer accepted.
func (a *Writer) Write(slot wire.Slot) {
	if slot.Err != nil {
		a.Fail(slot.Ordinal, wire.NewSlotError(slot.Err.Code, slot.Err.Message, slot.Err.Retry))
		return
	}
	if slot.ContentType == "" {
		a.json(slot.Ordinal, slot.Data)
	} else {
		a.binary(slot.Ordinal, slot.ContentType, slot.Data)
	}
}

// Flush sends Buf in the background, or stashes it while a wrapper holds answers.
func (a *Writer) Flush() {
	if a.Buf == nil || a.here == 0 {
		return
	}
	if len(a.held.marks) > 0 {
		a.stash()
		return
	}
	buf := a.Buf
	a.Buf, a.here = nil, 0
	a.ship(buf)
}

// ship completes a message and sends it in the background.
func (a *Writer) ship(buf *bytes.Buffer) {
	buf.WriteString(ReplyClose)
	if err := a.Out.Reserve(a.Ctx, buf.Len()); err != nil {
		a.Broken(err)
		return
	}
	a.post(a.message(buf.Bytes()), buf.Len(), buf)
}

// post sends a message in the background and recycles buf. Outbox capacity must be reserved.
func (a *Writer) post(msg *nats.Msg, room int, buf *bytes.Buffer) {
	a.sends.Go(func() {
		err := a.Out.Publish(a.Ctx, msg)
		a.Out.Release(room)
		if err != nil {
			a.Mu.Lock()
			defer a.Mu.Unlock()
			a.Broken(err)
			return
		}
		if buf != nil {
			recycle(buf)
		}
	})
}

// Broken records the first send error.
func (a *Writer) Broken(err error) {
	if a.err == nil {
		a.err = err
		a.GiveUp(err)
	}
}

// message wraps a body. Its Nats-Msg-Id is random: derived from the slice, it would make a reply's second message, or
// the reply to a redelivery, look like a duplicate.
func (a *Writer) message(body []byte) *nats.Msg {
	msg := a.plain(body)
	if a.Squeeze > 0 && len(body) >= a.Squeeze {
		if small := wire.Compress(body); len(small) < len(body) {
			msg.Data = small
			msg.Header[wire.HeaderEncoding] = []string{wire.EncodingZstd}
		}
	}
	return msg
}

func (a *Writer) plain(body []byte) *nats.Msg {
	msg := &nats.Msg{Subject: a.Subject, Header: maps.Clone(a.Header), Data: body}
	msg.Header[wire.HeaderMsgID] = []string{uuid.NewString()}
	return msg
}

// Send completes the reply with the final message, which has the failure for items without a slot, if any. It returns
// once JetStream has acknowledged all messages of the reply. Later answers are refused.
func (a *Writer) Send(failure *wire.SlotError) error {
	if a.Unfinished {
		return a.sendRest()
	}
	final := a.Final(failure)
	err := a.Out.Reserve(a.Ctx, len(final.Data))
	if err == nil {
		err = a.Out.Publish(a.Ctx, final)
		a.Out.Release(len(final.Data))
	}
	a.sends.Wait()
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if err == nil {
		err = a.err
	}
	if err == nil && a.Buf != nil {
		recycle(a.Buf)
		a.Buf = nil
	}
	return err
}

// sendRest sends the remaining answers and waits for all acknowledgements.
func (a *Writer) sendRest() error {
	a.Mu.Lock()
	a.Flush()
	a.Mu.Unlock()
	a.sends.Wait()
	a.Mu.Lock()
	defer a.Mu.Unlock()
	return a.err
}

// Final closes the answers and returns the final message.
func (a *Writer) Final(failure *wire.SlotError) *nats.Msg {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	a.Closed = true
	var tail []byte
	if failure != nil {
		tail = wire.AppendError([]byte(`],"error":`), failure)
		tail = append(tail, '}')
	} else {
		tail = []byte(ReplyClose)
	}
	if a.Buf != nil && a.Buf.Len()+len(tail) > a.Limit {
		a.Flush()
	}
	if a.Buf == nil {
		a.open()
	}
	a.Buf.Write(tail)
	msg := a.message(a.Buf.Bytes())
	msg.Header[wire.HeaderFinal] = []string{strconv.Itoa(a.Total)}
	if !a.begun.IsZero() {
		msg.Header[wire.HeaderTook] = []string{wire.FormatTook(time.Since(a.begun))}
	}
	if failure != nil {
		msg.Header[wire.HeaderErrorCode] = []string{failure.Code}
		msg.Header[wire.HeaderError] = []string{wire.OneLine(wire.Cut(failure.Message, wire.MaxHeaderMessage))}
	}
	return msg
}

// Close refuses further answers and returns the number of slots.
func (a *Writer) Close() (total int) {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	a.Closed = true
	return a.Total
}

// OwnError is an error of the SDK that the handler did not choose.
type OwnError struct{ Err error }

func (e OwnError) Error() string { return e.Err.Error() }

func (e OwnError) Unwrap() error { return e.Err }

// Undecided reports whether the handler did not choose the error with Fail or Retry.
func Undecided(err error) bool {
	var own OwnError
	var slot *wire.SlotError
	return errors.As(err, &own) || !errors.As(err, &slot)
}

// Fault writes an error slot that the handler did not choose.
func (a *Writer) Fault(ordinal int, e *wire.SlotError) {
	a.Blame(ordinal)
	a.Fail(ordinal, e)
}

// Blame records that the handler did not choose an item's error.
func (a *Writer) Blame(ordinal int) {
	if a.faults == nil {
		a.faults = map[int]bool{}
	}
	a.faults[ordinal] = true
}

// IsFault reports whether Blame was called for an item.
func (a *Writer) IsFault(ordinal int) bool {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	return a.faults[ordinal]
}

// Start records when work on the chunk began, unless an earlier stage did.
func (a *Writer) Start() {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if a.begun.IsZero() {
		a.begun = time.Now()
	}
}

// SetBegun stores when work on a suspended chunk began.
func (a *Writer) SetBegun(h nats.Header) {
	a.Mu.Lock()
	defer a.Mu.Unlock()
	if !a.begun.IsZero() {
		h[wire.HeaderFlowBegun] = []string{strconv.FormatInt(a.begun.UnixMilli(), 10)}
	}
}

// Resume restores what SetBegun stored, possibly by another clock.
func (a *Writer) Resume(h nats.Header) {
	ms, err := strconv.ParseInt(h.Get(wire.HeaderFlowBegun), 10, 64)
	if begun := time.UnixMilli(ms); err == nil && begun.Before(time.Now()) {
		a.begun = begun
	}
}
