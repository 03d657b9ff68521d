package apicore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"golang.org/x/sync/semaphore"

	"github.com/tranchehq/tranche/endpoints/trackerclient"
	"github.com/tranchehq/tranche/internal/access"
)

const (
	maxDrained = 1 << 30 // of a body that is not needed
	// The rest of a refused upload is read so that its sender sees the answer.
	drainTimeout = 10 * time.Second
	// revokedDrain applies if the sender's token was revoked meanwhile.
	revokedDrain = time.Second
)

// timed limits how long a caller may be silent while a body is read and while an answer is written. In between a
// request may work without a limit: a deadline passing then would end it or lose its answer.
func (s *Core) timed(w http.ResponseWriter, r *http.Request) (*timedWriter, *http.Request) {
	control := http.NewResponseController(w)
	body := &timedBody{body: r.Body, control: control, silence: s.Silence, whole: r.Body == http.NoBody,
		drain: drainTimeout, until: time.Now().Add(s.Silence)}
	timed := *r
	timed.Body = body
	return &timedWriter{ResponseWriter: w, body: body, control: control, silence: s.Silence}, &timed
}

// deadlineStep is the minimum interval between changes of a deadline.
const deadlineStep = time.Second / 4

const slowestBody = 256

// timedBody extends the deadline whenever bytes arrive, though not indefinitely, and removes it at the end of the
// body.
type timedBody struct {
	body    io.ReadCloser
	control *http.ResponseController
	silence time.Duration
	until   time.Time     // when the whole body must have arrived; zero: it is a stream
	waited  time.Duration // for bytes, without the time its reader took
	came    int64
	moved   time.Time
	fixed   bool // the deadline is not moved
	whole   bool // the end was read

	refused func() error  // returns why the sender is refused; nil: not refused
	drain   time.Duration // time limit for reading an unneeded rest
}

func (b *timedBody) Read(p []byte) (int, error) {
	began := time.Now() // before setting the deadline, so that time in between does not count as slowness
	if !b.fixed && began.Sub(b.moved) > min(deadlineStep, b.silence/4) {
		b.moved = began
		// A server without deadlines, as in tests, needs none.
		_ = b.control.SetReadDeadline(began.Add(min(b.silence, b.left(began))))
	}
	if b.refused != nil { // after the deadline: refuse sets a deadline in the past, before or after this one
		if err := b.refused(); err != nil {
			return 0, err
		}
	}
	if !b.fixed && b.left(began) <= 0 {
		return 0, &slowBodyError{silence: b.silence, whole: !b.until.IsZero()}
	}
	n, err := b.body.Read(p)
	b.waited, b.came = b.waited+time.Since(began), b.came+int64(n)
	switch {
	case err == io.EOF:
		b.whole = true
		b.ended()
	case errors.Is(err, os.ErrDeadlineExceeded) && !b.fixed && time.Since(began) < b.silence/2: // not silence
		err = &slowBodyError{silence: b.silence, whole: !b.until.IsZero()}
	}
	return n, err
}

// left is how much longer the rest of the body may keep its reader waiting.
func (b *timedBody) left(now time.Time) time.Duration {
	if !b.until.IsZero() {
		return b.until.Sub(now)
	}
	return b.silence + time.Duration(b.came)*(time.Second/slowestBody) - b.waited
}

type slowBodyError struct {
	silence time.Duration
	whole   bool // the whole body was due
}

func (e *slowBodyError) Error() string {
	if e.whole {
		return fmt.Sprintf("it did not arrive entirely within %s", e.silence)
	}
	return fmt.Sprintf("it came too slowly: it has %s and a second for each %d bytes; send it from a file, or in "+
		"parts to an open run (tranche run open, run add)", e.silence, slowestBody)
}

func (*slowBodyError) Timeout() bool { return true }

func (*slowBodyError) Temporary() bool { return true }

// SlowBody reports whether an error is a timeout of a body, and describes it.
func SlowBody(err error) (how string, slow bool) {
	if trickle, ok := errors.AsType[*slowBodyError](err); ok {
		return trickle.Error(), true
	}
	var timed net.Error
	return "nothing more came of it for too long", errors.As(err, &timed) && timed.Timeout()
}

// Stream is a request body read as a stream. [Streamed] describes it.
type Stream struct {
	kind string
	body io.Reader
}

// Resolve implements huma.Resolver.
func (s *Stream) Resolve(ctx huma.Context) []error {
	s.kind, s.body = ctx.Header("Content-Type"), ctx.BodyReader()
	return nil
}

// Body returns the stream.
func (s *Stream) Body() io.Reader { return s.body }

// Kind is the Content-Type that the sender gave.
func (s *Stream) Kind() string { return s.kind }

// Files describes a body of one of these types.
func Files(types ...string) *huma.RequestBody {
	body := &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{}}
	for _, kind := range types {
		body.Content[kind] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}
	}
	return body
}

// Whole turns an interrupted body, or part of one, into an error of the sender, never an end. undone says that
// nothing was changed.
func Whole(from io.Reader, name, undone string) io.Reader { return &wholeBody{from, name, undone} }

type wholeBody struct {
	from         io.Reader
	name, undone string
}

func (w *wholeBody) Read(p []byte) (int, error) {
	n, err := w.from.Read(p)
	how, slow := SlowBody(err)
	_, said := Told(err)
	switch {
	case err == nil, errors.Is(err, io.EOF), said != nil:
		return n, err
	case slow:
		return n, BadInput(w.name + ": " + how + "; " + w.undone + ", send it again")
	}
	return n, BadInput(w.name + " is truncated; " + w.undone + ", send it again")
}

// refuse makes reads fail once ctx ends, unless that is the sender's doing, until allow is called.
func (b *timedBody) refuse(ctx context.Context) (allow func()) {
	if b.whole {
		return func() {} // the whole body was read
	}
	b.refused = func() error { return access.Recheck(ctx) }
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		_ = b.control.SetReadDeadline(time.Unix(1, 0)) // interrupts a waiting read
	})
	return func() {
		b.refused = nil
		if !stop() { // the deadline must not hit the next request of this connection, maybe another caller's
			<-ended
			_ = b.control.SetReadDeadline(time.Time{}) // as above
			b.drain = revokedDrain
		}
	}
}

// HurryBody limits the time for the whole body to d.
func HurryBody(r *http.Request, d time.Duration) {
	if body, ok := r.Body.(*timedBody); ok {
		body.silence = min(body.silence, d)
		body.until, body.drain = time.Now().Add(body.silence), min(body.drain, d)
	}
}

func (b *timedBody) ended() {
	b.moved = time.Time{}
	if !b.fixed {
		_ = b.control.SetReadDeadline(time.Time{}) // as above
	}
}

func (b *timedBody) within(d time.Duration) {
	b.fixed = true
	_ = b.control.SetReadDeadline(time.Now().Add(d)) // as above
}

// Close does nothing: net/http closes the body in the end, and until then finish may have to read the rest.
func (b *timedBody) Close() error { return nil }

// timedWriter extends the deadline with each write, and answers before the end of a body that is not needed.
type timedWriter struct {
	http.ResponseWriter

	body    *timedBody
	control *http.ResponseController
	silence time.Duration
	moved   time.Time
	begun   bool

	route  string // for metrics; empty: not routed yet
	role   access.Role
	caller string // empty: unknown
	status int    // 0: no answer yet

	known bool   // the caller is known
	leave func() // called at the end of the request; nil: not counted as unauthenticated
}

func (t *timedWriter) WriteHeader(status int) {
	if t.status >= http.StatusOK { // huma does so when the caller has gone; net/http would log it as a mistake
		return
	}
	t.begin()
	t.move()
	t.status = status // 1xx statuses come before the final one
	t.ResponseWriter.WriteHeader(status)
}

func (t *timedWriter) Write(p []byte) (int, error) {
	t.begin()
	t.move()
	return t.ResponseWriter.Write(p)
}

func (t *timedWriter) move() {
	if now := time.Now(); now.Sub(t.moved) > min(deadlineStep, t.silence/4) {
		t.moved = now
		_ = t.control.SetWriteDeadline(now.Add(t.silence)) // a server without deadlines, as in tests, needs none
	}
}

// begin runs before the first byte of an answer. net/http alone would first read up to 256 KiB more, without a
// deadline, while the sender may be waiting for the answer.
func (t *timedWriter) begin() {
	if t.begun {
		return
	}
	t.begun = true
	if !t.body.whole && t.control.EnableFullDuplex() == nil {
		t.Header().Set("Connection", "close")
	}
}

// finish sends an answer that precedes the end of the body and reads on for a while: a client that is still sending
// would otherwise see a reset connection instead of the answer.
func (t *timedWriter) finish() {
	if t.body.whole {
		return
	}
	t.begin()
	if t.control.Flush() != nil {
		return
	}
	t.body.within(t.body.drain)
	_, _ = io.CopyN(io.Discard, t.body, maxDrained) // as much as there is
}

func (t *timedWriter) Unwrap() http.ResponseWriter { return t.ResponseWriter }

const noRoute = "(none)"

// timedOf returns the writer of a request, or else one that no one reads.
func timedOf(w http.ResponseWriter) *timedWriter {
	if timed, ok := w.(*timedWriter); ok {
		return timed
	}
	return &timedWriter{body: &timedBody{whole: true}}
}

func (t *timedWriter) measure(to Meter) {
	to.Asked(cmp.Or(t.route, noRoute), string(cmp.Or(t.role, access.None)), cmp.Or(t.status, http.StatusOK))
}

const (
	// maxBulk limits the body bytes of bulky requests in progress. They are copied once, and what they name takes up to
	// 25 times as much.
	maxBulk = 16 << 20
	// bulkStep is how many bytes wait for room per step.
	bulkStep = 32 << 10
	// bulkTimeout is how long they wait before the request is refused.
	bulkTimeout = 2 * time.Second
)

// Bulky limits the body of an operation to most bytes, held in memory, within the shared limit maxBulk.
func Bulky(op huma.Operation, most int64) huma.Operation {
	op.MaxBodyBytes = most
	return marked(op, func(r *Route) { r.bulk = most })
}

// bulkRoom shares maxBulk among the bodies of bulky requests. Only received bytes count, not a claimed length. Room
// is taken in order of arrival and in small steps, so that no request waits for a large body to get all of its room.
type bulkRoom struct {
	bytes *semaphore.Weighted
}

// Enter reads the body of a request, up to most bytes, as room allows, and replaces the body by what it read. Errors
// of the body are left for its reader to find.
func (b bulkRoom) Enter(r *http.Request, most int64) (leave func(), err error) {
	held := &heldBody{room: b.bytes}
	end, err := held.fill(r.Context(), r.Body, int(most))
	if err != nil {
		held.leave()
		return nil, err
	}
	r.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(&held.bytes, end), r.Body}
	return held.leave, nil
}

type heldBody struct {
	room  *semaphore.Weighted
	bytes bytes.Buffer
	had   int64
}

// fill reads up to most bytes. end yields the rest or the read error. err means that there is no room.
func (h *heldBody) fill(ctx context.Context, from io.Reader, most int) (end io.Reader, err error) {
	step := make([]byte, bulkStep)
	for h.bytes.Len() < most {
		n, read := from.Read(step[:min(len(step), most-h.bytes.Len())])
		if err := h.take(ctx, n); err != nil {
			return nil, err
		}
		h.bytes.Write(step[:n])
		if read != nil {
			return ended{read}, nil //nolint:nilerr // returned to the reader
		}
	}
	return from, nil
}

func (h *heldBody) take(ctx context.Context, n int) error {
	if n == 0 { // at the end, where the context may have ended too
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, bulkTimeout)
	defer cancel()
	if h.room.Acquire(ctx, int64(n)) != nil {
		return &trackerclient.Error{Code: trackerclient.CodeBusy,
			Message: "this server holds as many requests of this kind as it has memory for; send it again a little later"}
	}
	h.had += int64(n)
	return nil
}

func (h *heldBody) leave() { h.room.Release(h.had) }

type ended struct{ err error }

func (e ended) Read([]byte) (int, error) { return 0, e.err }
