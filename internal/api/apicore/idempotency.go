package apicore

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/inspect"
	"github.com/tranchehq/tranche/workqueue/session"
)

// Headers of idempotent requests.
const (
	IdempotencyHeader = "Idempotency-Key"
	ReplayedHeader    = "Idempotency-Replayed"
)

const (
	maxRequestKey   = 200
	maxKeptAnswer   = 64 << 10
	underWayRetry   = "1"             // seconds
	keepTimeout     = 5 * time.Second // for PostgreSQL to store an answer
	locationHeader  = "Location"
	truncatedHeader = "Tranche-Not-Kept" // of an answer whose body was not kept; never sent
)

// idempotent executes requests with the same key once and replays the first answer to repeats. Only successes are
// stored: a refused request may be retried with the same key. An answer with a secret is not stored, so its key is
// ignored.
func (s *Core) idempotent(next http.Handler, w http.ResponseWriter, r *http.Request, unstored bool) {
	keys := r.Header.Values(IdempotencyHeader)
	if len(keys) == 0 || unstored || r.Method == http.MethodGet || r.Method == http.MethodHead {
		next.ServeHTTP(w, r)
		return
	}
	user := cmp.Or(r.Header.Get(ActorHeader), Anonymous)
	if err := checkRequestKey(keys, user); err != nil {
		SendProblem(w, s.Problem(r.Context(), err))
		return
	}
	key := workqueue.RequestKey{User: user, Key: keys[0]}
	if _, is := s.underWay.LoadOrStore(key, true); is {
		refuseUnderWay(w)
		return
	}
	defer s.underWay.Delete(key)
	s.once(next, w, r, key)
}

func operationOf(r *http.Request) string {
	operation := r.Method + " " + Cut(r.URL.Path, maxDetail)
	if in := r.Header.Get(NamespaceHeader); in != "" {
		operation += " in " + Echo(in)
	}
	return operation
}

func checkRequestKey(keys []string, user string) error {
	if len(keys) > 1 {
		return BadInput("the header " + IdempotencyHeader + " appears more than once; send one")
	}
	odd := func(c rune) bool { return c < '!' || c > '~' }
	if key := keys[0]; key == "" || len(key) > maxRequestKey || strings.ContainsFunc(key, odd) {
		return BadInput(fmt.Sprintf("the header %s must have 1 to %d characters, of ASCII and without spaces, like a UUID",
			IdempotencyHeader, maxRequestKey))
	}
	return CheckText("header "+ActorHeader, user, MaxActorBytes)
}

func refuseUnderWay(w http.ResponseWriter) {
	w.Header().Set("Retry-After", underWayRetry)
	WriteProblem(w, http.StatusConflict, "a request with this "+IdempotencyHeader+
		" is in progress; ask again with the same key for its answer")
}

func (s *Core) once(next http.Handler, w http.ResponseWriter, r *http.Request, key workqueue.RequestKey) {
	body := newPrintedBody(r)
	claim, known, err := session.New(s.Store).ClaimRequest(r.Context(), key, operationOf(r), body.head, s.Node.Session())
	switch {
	case err != nil:
		SendProblem(w, s.Problem(r.Context(), err))
		return
	case known != nil:
		s.repeat(w, r, body, known)
		return
	}
	kept := &keptWriter{recorder: recorder{header: w.Header()}, to: w}
	ended := false
	defer func() { // also after a panic, net/http's way to abort an answer
		s.settleRequest(r.Context(), claim, body, kept, ended)
		if ended {
			kept.send()
		}
	}()
	carried := r.WithContext(session.WithClaim(r.Context(), claim))
	carried.Body = body
	next.ServeHTTP(kept, carried)
	ended = true
}

// settleRequest stores the answer of a success before it is sent, because its reader may repeat the request
// immediately.
func (s *Core) settleRequest(ctx context.Context, claim *workqueue.RequestClaim, body *printedBody, kept *keptWriter,
	ended bool,
) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), keepTimeout)
	defer cancel()
	var err error
	if ended && kept.status() < http.StatusMultipleChoices {
		err = session.New(s.Store).AnswerRequest(ctx, claim, kept.answer(), body.fingerprint())
	} else {
		err = session.New(s.Store).DropRequest(ctx, claim)
	}
	if err != nil { // the change was recorded in its own transaction
		s.Log.Warn("keep what a request was answered", zap.Error(err))
	}
}

func (s *Core) repeat(w http.ResponseWriter, r *http.Request, body *printedBody, known *session.KeptRequest) {
	same := known.Operation == operationOf(r)
	if same {
		var err error
		if same, err = body.matches(known.Fingerprint); err != nil {
			SendProblem(w, s.Problem(r.Context(), BadInput("the body is truncated; send it again")))
			return
		}
	}
	switch {
	case !same:
		WriteProblem(w, http.StatusUnprocessableEntity, fmt.Sprintf("the %s was used at %s for another request (%s); use a "+
			"new key for each request", IdempotencyHeader, known.At.UTC().Format(time.RFC3339),
			Echo(known.Operation)))
	case known.Answer != nil && known.Answer.Headers[truncatedHeader] == "":
		replay(w, known.Answer)
	case known.Answer == nil && known.CarriedOut == nil:
		refuseUnderWay(w)
	default:
		s.answerCommitted(w, r, known)
	}
}

func replay(w http.ResponseWriter, answer *session.Answer) {
	for name, value := range answer.Headers {
		w.Header().Set(name, value)
	}
	if answer.ContentType != "" {
		w.Header().Set("Content-Type", answer.ContentType)
	}
	w.Header().Set(ReplayedHeader, "true")
	w.WriteHeader(answer.Status)
	_, _ = w.Write(answer.Body) // a stored answer, in its type; fails if the caller is gone
}

// answerCommitted answers a request that was committed but whose answer is lost, because the node died in between.
// For a start, the run has all that the answer had.
func (s *Core) answerCommitted(w http.ResponseWriter, r *http.Request, known *session.KeptRequest) {
	what := "its effects are in: tranche audit"
	if done := known.CarriedOut; done != nil {
		if done.Action == "start" && done.Run != nil {
			s.answerStarted(w, r, *done.Run)
			return
		}
		what = "it did: " + done.Action
		switch {
		case done.Run != nil:
			what += ", of run " + done.Run.String() + "; see: tranche audit --run " + done.Run.String()
		case done.Subject != "":
			what += ", of " + Echo(done.Subject) + "; see: tranche audit"
		}
	}
	WriteProblem(w, http.StatusConflict, "the request was carried out, at least in part, and its answer was not kept; "+
		"nothing is repeated; "+what)
}

func (s *Core) answerStarted(w http.ResponseWriter, r *http.Request, run workqueue.RunID) {
	view, err := inspect.New(s.Store).Run(r.Context(), run)
	if err != nil {
		SendProblem(w, s.Problem(r.Context(), err))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set(locationHeader, Prefix+"/runs/"+run.String())
	w.Header().Set(ReplayedHeader, "true")
	_ = json.NewEncoder(w).Encode(s.config.Started(view)) // as above
}

// printedBody fingerprints a body while it is read. The boundary of a multipart body is left out: clients choose a
// new one for each attempt.
type printedBody struct {
	io.ReadCloser

	head     []byte // fingerprint of what is known without the body
	boundary []byte
	sum      hash.Hash
	held     []byte // the end of what was read, maybe the start of a boundary
	read     uint64 // bytes of the fingerprint
	limit    uint64 // when comparing; 0: no limit
	whole    bool
}

func newPrintedBody(r *http.Request) *printedBody {
	b := &printedBody{ReadCloser: r.Body, sum: sha256.New()}
	kind, params, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err == nil && kind == "multipart/form-data" && params["boundary"] != "" {
		b.boundary = []byte(params["boundary"])
	} else {
		kind = r.Header.Get("Content-Type")
	}
	query := r.URL.Query()
	for _, values := range query {
		slices.Sort(values)
	}
	head := sha256.Sum256([]byte(kind + "\x00" + query.Encode()))
	b.head = head[:]
	return b
}

func (b *printedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.add(p[:n])
	if err == io.EOF && !b.whole {
		b.whole = true
		b.write(b.held)
		b.held = nil
	}
	return n, err
}

func (b *printedBody) add(p []byte) {
	if len(b.boundary) == 0 {
		b.write(p)
		return
	}
	b.held = append(b.held, p...)
	for {
		at := bytes.Index(b.held, b.boundary)
		if at < 0 {
			break
		}
		b.write(b.held[:at])
		b.held = b.held[at+len(b.boundary):]
	}
	if safe := len(b.held) - len(b.boundary) + 1; safe > 0 {
		b.write(b.held[:safe])
		b.held = append(b.held[:0:0], b.held[safe:]...)
	}
}

func (b *printedBody) write(p []byte) {
	if left := b.limit - b.read; b.limit > 0 && uint64(len(p)) > left {
		p = p[:left]
	}
	b.read += uint64(len(p))
	_, _ = b.sum.Write(p) // a hash never fails
}

// fingerprint covers what was read: all of the body, unless the request needed less.
func (b *printedBody) fingerprint() []byte {
	out := binary.BigEndian.AppendUint64(bytes.Clone(b.head), b.read)
	if b.whole {
		out = append(out, 1)
	} else {
		out = append(out, 0)
	}
	return b.sum.Sum(out)
}

// matches reads the body as far as the other was read, and reports whether the fingerprints are equal.
func (b *printedBody) matches(other []byte) (bool, error) {
	const begin = sha256.Size
	if !bytes.HasPrefix(other, b.head) {
		return false, nil
	}
	if len(other) != begin+8+1+sha256.Size { // no answer yet, so the rest is unknown
		return true, nil
	}
	whole, most := other[begin+8] == 1, binary.BigEndian.Uint64(other[begin:])
	if !whole {
		b.limit = most
	}
	buffer := make([]byte, 32<<10)
	for whole || b.read < most {
		if _, err := b.Read(buffer); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return false, err
		}
	}
	b.whole = b.whole && whole // if the other was not read to its end, this one's end does not matter
	return bytes.Equal(b.fingerprint(), other), nil
}

// keptWriter holds an answer back to store it before it is sent. Too large an answer is sent immediately.
type keptWriter struct {
	recorder

	to      http.ResponseWriter
	flowing bool // the body was too large to be kept
}

func (k *keptWriter) Write(p []byte) (int, error) {
	if !k.flowing && k.body.Len()+len(p) <= maxKeptAnswer {
		return k.recorder.Write(p)
	}
	k.WriteHeader(http.StatusOK)
	if !k.flowing {
		k.flowing = true
		k.to.WriteHeader(k.code)
		if _, err := k.to.Write(k.body.Bytes()); err != nil {
			return 0, err
		}
	}
	return k.to.Write(p)
}

func (k *keptWriter) Unwrap() http.ResponseWriter { return k.to }

func (k *keptWriter) status() int { return cmp.Or(k.code, http.StatusOK) }

func (k *keptWriter) answer() *session.Answer {
	a := &session.Answer{Status: k.status(), ContentType: k.Header().Get("Content-Type"),
		Headers: map[string]string{}, Body: k.body.Bytes()}
	for _, name := range []string{locationHeader, "ETag", ActHeader} {
		if value := k.Header().Get(name); value != "" {
			a.Headers[name] = value
		}
	}
	if k.flowing {
		a.Headers[truncatedHeader], a.Body = "true", nil
	}
	return a
}

func (k *keptWriter) send() {
	if k.flowing {
		return
	}
	k.to.WriteHeader(k.status())
	_, _ = k.to.Write(k.body.Bytes()) // fails if the caller is gone
}
