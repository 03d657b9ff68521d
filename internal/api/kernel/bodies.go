package kernel

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
	maxDrained = 1 << 30 // of a body that no one needs
	// The rest of an upload that was refused is read, so that its sender sees the answer; also when its token was
	// revoked meanwhile.
	drainTimeout = 10 * time.Second
	// revokedDrain is that for a sender whose token was revoked meanwhile.
	revokedDrain = time.Second
)

// timed bounds the silence of a caller: while a body is read, and whenever an answer is written. In between a request
// may work as long as it needs to: a deadline that passed then would end it, or lose its answer.
func (s *Kernel) timed(w http.ResponseWriter, r *http.Request) (*timedWriter, *http.Request) {
	control := http.NewResponseController(w)
	body := &timedBody{body: r.Body, control: control, silence: s.Silence, whole: r.Body == http.NoBody,
		drain: drainTimeout, until: time.Now().Add(s.Silence)}
	timed := *r
	timed.Body = body
	return &timedWriter{ResponseWriter: w, body: body, control: control, silence: s.Silence}, &timed
}

// deadlineStep is how seldom a deadline is moved.
const deadlineStep = time.Second / 4

// slowestBody is how many bytes of a body buy its sender another second.
const slowestBody = 256

// timedBody gives a sender more time whenever something arrives, though not indefinitely, and has no deadline once all
// has.
type timedBody struct {
	body    io.ReadCloser
	control *http.ResponseController
	silence time.Duration
	until   time.Time     // it must be there as a whole by then; zero: it is read as it comes
	waited  time.Duration // for what came, which is not the time that its reader took
	came    int64
	moved   time.Time
	fixed   bool // the deadline stays where it is
	whole   bool // all of it has been read

	refused func() error  // why nothing more is wanted of who sends it; nil: nothing keeps it from being read
	drain   time.Duration // what the rest of it may take when no one needs it
}

func (b *timedBody) Read(p []byte) (int, error) {
	began := time.Now() // before the deadline is set, so that nothing between looks as if it had been too slow
	if !b.fixed && began.Sub(b.moved) > min(deadlineStep, b.silence/4) {
		b.moved = began
		// A server without deadlines, as in tests, needs none.
		_ = b.control.SetReadDeadline(began.Add(min(b.silence, b.left(began))))
	}
	if b.refused != nil { // after the deadline: whoever refuses has set one that has passed, before or after this
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
	case errors.Is(err, os.ErrDeadlineExceeded) && !b.fixed && time.Since(began) < b.silence/2: // it was not silence
		err = &slowBodyError{silence: b.silence, whole: !b.until.IsZero()}
	}
	return n, err
}

// left is how much longer the rest may keep its reader waiting.
func (b *timedBody) left(now time.Time) time.Duration {
	if !b.until.IsZero() {
		return b.until.Sub(now)
	}
	return b.silence + time.Duration(b.came)*(time.Second/slowestBody) - b.waited
}

// slowBodyError is a time-out of a body that came, but too slowly.
type slowBodyError struct {
	silence time.Duration
	whole   bool // it had to be there as a whole
}

func (e *slowBodyError) Error() string {
	if e.whole {
		return fmt.Sprintf("it did not arrive entirely within %s", e.silence)
	}
	return fmt.Sprintf("it came too slowly: it has %s and a second for each %d bytes; send it from a file, or in "+
		"parts to an open run (tranche run open, run add)", e.silence, slowestBody)
}

// Timeout and Temporary make it a net.Error.
func (*slowBodyError) Timeout() bool { return true }

// Temporary is true: the next may come faster.
func (*slowBodyError) Temporary() bool { return true }

// SlowBody reports whether an error says that a body was waited for in vain, and how.
func SlowBody(err error) (how string, slow bool) {
	if trickle, ok := errors.AsType[*slowBodyError](err); ok {
		return trickle.Error(), true
	}
	var timed net.Error
	return "nothing more came of it for too long", errors.As(err, &timed) && timed.Timeout()
}

// Stream is the body of a request that is read as it comes. [Streamed] describes it.
type Stream struct {
	kind string
	body io.Reader
}

// Resolve implements huma.Resolver.
func (s *Stream) Resolve(ctx huma.Context) []error {
	s.kind, s.body = ctx.Header("Content-Type"), ctx.BodyReader()
	return nil
}

// Body is what comes.
func (s *Stream) Body() io.Reader { return s.body }

// Kind is what the sender says that the body is.
func (s *Stream) Kind() string { return s.kind }

// Files is a body of one of these types.
func Files(types ...string) *huma.RequestBody {
	body := &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{}}
	for _, kind := range types {
		body.Content[kind] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}}
	}
	return body
}

// Whole makes a break in a body, or a part of one, the sender's fault, and never the end. undone says that nothing has
// come of it.
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
	return n, BadInput(w.name + " breaks off before its end; " + w.undone + ", send it again")
}

// refuse has reads fail from the end of ctx on, as far as it is not the sender's doing, until allow is called.
func (b *timedBody) refuse(ctx context.Context) (allow func()) {
	if b.whole {
		return func() {} // there is nothing to read
	}
	b.refused = func() error { return access.Recheck(ctx) }
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		_ = b.control.SetReadDeadline(time.Unix(1, 0)) // ends the read that waits
	})
	return func() {
		b.refused = nil
		if !stop() { // its deadline must not meet the next request of this connection, which may be someone else's
			<-ended
			_ = b.control.SetReadDeadline(time.Time{}) // as above
			b.drain = revokedDrain
		}
	}
}

// refuseBody is refuse for the body of a request.
func refuseBody(ctx context.Context, r *http.Request) (allow func()) {
	if body, ok := r.Body.(*timedBody); ok {
		return body.refuse(ctx)
	}
	return func() {}
}

// streamBody lets the body of a request take as long as it keeps coming.
func streamBody(r *http.Request) {
	if body, ok := r.Body.(*timedBody); ok {
		body.until = time.Time{}
	}
}

// HurryBody has a body be there as a whole within d.
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

// Close implements io.Closer. net/http closes the body in the end; until then the rest may have to be read: see finish.
func (b *timedBody) Close() error { return nil }

// timedWriter gives a reader more time whenever something is written, and answers before the body has ended when no one
// needs the rest of it.
type timedWriter struct {
	http.ResponseWriter

	body    *timedBody
	control *http.ResponseController
	silence time.Duration
	moved   time.Time
	begun   bool

	route  string // for who measures; empty: it was not let so far
	role   access.Role
	status int // 0: nothing was answered

	known bool   // it is known who asks
	leave func() // when the request has ended; nil: it is not counted among those of strangers
}

func (t *timedWriter) WriteHeader(status int) {
	if t.status >= http.StatusOK { // huma says so when the caller has gone, and net/http would log it as a mistake
		return
	}
	t.begin()
	t.move()
	t.status = status // those before the last are news in progress
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

// begin comes before the first byte of an answer. Left alone, net/http would first read on for up to 256 KiB, without
// a deadline, while the sender may be waiting for the answer.
func (t *timedWriter) begin() {
	if t.begun {
		return
	}
	t.begun = true
	if !t.body.whole && t.control.EnableFullDuplex() == nil {
		t.Header().Set("Connection", "close")
	}
}

// finish sends an answer that came before the end of the body, and reads on for a while: a client that is still sending
// would otherwise see its connection reset instead of the answer.
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

// Unwrap is for http.ResponseController.
func (t *timedWriter) Unwrap() http.ResponseWriter { return t.ResponseWriter }

// noRoute stands for the route of a request that was refused before it had one.
const noRoute = "(none)"

// noteRoute says which route a request takes, for who measures; open, that everybody is an admin.
func noteRoute(w http.ResponseWriter, pattern string, open bool) {
	if timed, ok := w.(*timedWriter); ok {
		timed.route = pattern
	}
	if open {
		noteRole(w, access.Admin)
	}
}

// noteRole says of what role it is who makes a request, also.
func noteRole(w http.ResponseWriter, role access.Role) {
	if timed, ok := w.(*timedWriter); ok {
		timed.role = role
	}
}

func (t *timedWriter) measure(to Meter) {
	to.Asked(cmp.Or(t.route, noRoute), string(cmp.Or(t.role, access.None)), cmp.Or(t.status, http.StatusOK))
}

const (
	// maxBulk bounds the bytes of bulky requests that are in progress. They are copied once, and what they name takes up
	// to 25 times as much.
	maxBulk = 16 << 20
	// bulkStep is how many bytes wait for room at once.
	bulkStep = 32 << 10
	// bulkTimeout is how long they wait before the request is refused.
	bulkTimeout = 2 * time.Second
)

// Bulky says that the body of an operation has so many bytes at most, and is in memory as a whole: there is room
// for some of them at once.
func Bulky(op huma.Operation, most int64) huma.Operation {
	op.MaxBodyBytes = most
	return noted(op, metaBulk, most)
}

// bulkRoom is the room for the bodies of bulky requests. They take it as they come: what a request says of its length
// takes none. Who came first has it first, by steps, so that no one waits for a large body to have all of its room.
type bulkRoom struct {
	bytes *semaphore.Weighted
}

func newBulkRoom() bulkRoom { return bulkRoom{semaphore.NewWeighted(maxBulk)} }

// Enter reads the body of a request, of up to so many bytes, as there is room for it, and puts what it read in the
// place of the body. What is wrong with that is found by whoever reads it there, as it would be without a room.
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

// heldBody is what has come of a body. It has room for as many bytes.
type heldBody struct {
	room  *semaphore.Weighted
	bytes bytes.Buffer
	had   int64
}

// fill takes up to so many bytes. What follows them is left to read: the rest, or how it ended. The error is that
// there is no room.
func (h *heldBody) fill(ctx context.Context, from io.Reader, most int) (end io.Reader, err error) {
	step := make([]byte, bulkStep)
	for h.bytes.Len() < most {
		n, read := from.Read(step[:min(len(step), most-h.bytes.Len())])
		if err := h.take(ctx, n); err != nil {
			return nil, err
		}
		h.bytes.Write(step[:n])
		if read != nil {
			return ended{read}, nil //nolint:nilerr // whoever reads on finds it
		}
	}
	return from, nil
}

// take waits for room for so many bytes more.
func (h *heldBody) take(ctx context.Context, n int) error {
	if n == 0 { // as at the end, of which a context that ended with it tells no more
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
