package api

import (
	"io"
	"net/http"
	"time"
)

// timed bounds the silence of a caller: while a body is read, and whenever an answer is written. In between a request
// may work as long as it needs to: a deadline that passed then would end it, or lose its answer.
func (s *Server) timed(w http.ResponseWriter, r *http.Request) (http.ResponseWriter, *http.Request) {
	control := http.NewResponseController(w)
	timed := *r
	timed.Body = &timedBody{body: r.Body, control: control, silence: s.config.ReadTimeout}
	return &timedWriter{ResponseWriter: w, control: control, silence: s.config.ReadTimeout}, &timed
}

// deadlineStep is how seldom a deadline is moved.
const deadlineStep = time.Second / 4

// timedBody gives a sender more time whenever something arrives, and has no deadline once all has.
type timedBody struct {
	body    io.ReadCloser
	control *http.ResponseController
	silence time.Duration
	moved   time.Time
	fixed   bool // the deadline stays where it is
}

// Read implements io.Reader.
func (b *timedBody) Read(p []byte) (int, error) {
	if now := time.Now(); !b.fixed && now.Sub(b.moved) > min(deadlineStep, b.silence/4) {
		b.moved = now
		_ = b.control.SetReadDeadline(now.Add(b.silence)) // a server without deadlines, as in tests, needs none
	}
	n, err := b.body.Read(p)
	if err == io.EOF {
		b.ended()
	}
	return n, err
}

// ended says that nothing more will be read.
func (b *timedBody) ended() {
	b.moved = time.Time{}
	if !b.fixed {
		_ = b.control.SetReadDeadline(time.Time{}) // as above
	}
}

// within makes d the time for all that is still to be read.
func (b *timedBody) within(d time.Duration) {
	b.fixed = true
	_ = b.control.SetReadDeadline(time.Now().Add(d)) // as above
}

// Close implements io.Closer.
func (b *timedBody) Close() error { return b.body.Close() }

// timedWriter gives a reader more time whenever something is written.
type timedWriter struct {
	http.ResponseWriter

	control *http.ResponseController
	silence time.Duration
	moved   time.Time
}

// WriteHeader implements http.ResponseWriter.
func (t *timedWriter) WriteHeader(status int) {
	t.move()
	t.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer.
func (t *timedWriter) Write(p []byte) (int, error) {
	t.move()
	return t.ResponseWriter.Write(p)
}

func (t *timedWriter) move() {
	if now := time.Now(); now.Sub(t.moved) > min(deadlineStep, t.silence/4) {
		t.moved = now
		_ = t.control.SetWriteDeadline(now.Add(t.silence)) // a server without deadlines, as in tests, needs none
	}
}

// Unwrap is for http.ResponseController.
func (t *timedWriter) Unwrap() http.ResponseWriter { return t.ResponseWriter }
