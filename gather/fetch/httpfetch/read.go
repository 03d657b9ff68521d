package httpfetch

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"mime"
	"net/http"
	"strings"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/workqueue"
)

const (
	// maxErrorBody is how much is read of what a service says of an error: enough that no secret is cut in two where
	// something is quoted, in whatever form it stands.
	maxErrorBody = 64 << 10
	// firstRead is how much room a response gets before it has shown that it is larger.
	firstRead = 64 << 10
	// maxContentType is the longest content type that is kept.
	maxContentType = 200
)

var errTooLarge = errors.New("larger than is allowed")

// answer is a response that means success.
type answer struct {
	data        []byte
	contentType string // empty: JSON
}

// read reads a response's body.
func (s *step) read(ctx context.Context, r *http.Response) outcome {
	limit := s.client.conns.HTTP.ResponseLimit(s.MaxBytes)
	host := s.templates.URL.Shown()
	body, err := readAll(r, limit)
	switch {
	case errors.Is(err, errTooLarge):
		return failed(CodeTooLarge, false, "%s answers more than %v; max_bytes, and the operator's http.max_response, say "+
			"how much is taken", host, workqueue.Bytes(limit))
	case err != nil && (ctx.Err() != nil || timedOut(err)):
		return failed(CodeTimeout, true, "%s did not end its answer within %v", host, s.Timeout)
	case err != nil:
		return failed(CodeUnreachable, true, "%s broke off in its answer", host)
	}
	kind, whole, known := contentType(r.Header, body)
	switch {
	case !known:
		return failed(CodeBadResponse, false, "%s answers with a content type that is none", host)
	case s.Accept != "" && kind != s.Accept:
		return failed(CodeBadResponse, false, "%s answers with %.100q, and the step accepts %s", host, kind, s.Accept)
	case isJSON(kind):
		return s.readJSON(body)
	case s.Many || s.Response.Value != "":
		return failed(CodeBadResponse, false, "%s answers with %.100q, and the step wants a piece of JSON", host, kind)
	}
	return outcome{answer: &answer{body, whole}}
}

// readJSON takes the piece of an answer that the plan wants, or for a chunk all of it.
func (s *step) readJSON(body []byte) outcome {
	if len(bytes.TrimSpace(body)) == 0 {
		body = []byte("null")
	}
	if !json.Valid(body) {
		return failed(CodeBadResponse, false, "%s answers with what is said to be JSON and is none", s.templates.URL.Shown())
	}
	if s.Many {
		return outcome{answer: &answer{data: body}}
	}
	value, found := point(body, s.Response.Value)
	if !found {
		return failed(CodeBadResponse, false, "%s answers with JSON that has no %s", s.templates.URL.Shown(),
			s.Response.Value)
	}
	return outcome{answer: &answer{data: value}}
}

// readAll reads a body up to a limit.
func readAll(r *http.Response, limit int) ([]byte, error) {
	if r.ContentLength > int64(limit) {
		return nil, errTooLarge
	}
	room := min(int64(limit), firstRead)
	if r.ContentLength >= 0 {
		room = min(room, r.ContentLength)
	}
	b := bytes.NewBuffer(make([]byte, 0, room+bytes.MinRead))
	n, err := b.ReadFrom(io.LimitReader(r.Body, int64(limit)+1))
	if err == nil && n > int64(limit) {
		return b.Bytes()[:limit], errTooLarge
	}
	return b.Bytes(), err
}

// contentType returns the kind of a response, and the same with its parameters. One that does not say is JSON when it
// can be read as such.
func contentType(h http.Header, body []byte) (kind, whole string, known bool) {
	said := h.Get("Content-Type")
	if said == "" {
		if len(body) == 0 || json.Valid(body) {
			return "application/json", "", true
		}
		return wire.DefaultBinaryType, wire.DefaultBinaryType, true
	}
	kind, params, err := mime.ParseMediaType(said)
	if err != nil || !strings.Contains(kind, "/") {
		return "", "", false
	}
	if whole = mime.FormatMediaType(kind, params); whole == "" || len(whole) > maxContentType {
		whole = kind
	}
	return kind, whole, len(whole) <= maxContentType
}

func isJSON(kind string) bool {
	return kind == "application/json" || strings.HasSuffix(kind, "+json") || kind == "text/json"
}
