package httpfetch

import (
	"bytes"
	"cmp"
	"compress/flate"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"mime"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/workqueue"
)

const (
	// maxErrorBody bounds the bytes read of an error response: enough that quoting never cuts a secret in two.
	maxErrorBody = 64 << 10
	// firstRead is the initial buffer size for a response.
	firstRead      = 64 << 10
	maxContentType = 200
)

var errTooLarge = errors.New("larger than is allowed")

type answer struct {
	data        []byte
	contentType string // empty for JSON
}

func (s *step) read(ctx context.Context, r *http.Response) outcome {
	host := s.templates.URL.Shown()
	body, err := readAll(r, s.client.conns.HTTP.ResponseLimit(int(s.MaxBytes)))
	if err != nil {
		return s.unread(ctx, r, body, err)
	}
	kind, whole, known := contentType(r.Header, body)
	coding := strings.Join(r.Header.Values("Content-Encoding"), ", ") // removed with gzip
	switch {
	case coding != "" && !strings.EqualFold(coding, "identity") && len(body) > 0:
		return failed(CodeBadCompression, false, "%s answers with Content-Encoding %.40q; make it answer with gzip, or "+
			"uncompressed", host, coding)
	case !known:
		return failed(CodeBadResponse, false, "%s answers with a content type that is none", host)
	case s.Accept != "" && kind != s.Accept:
		return failed(CodeBadResponse, false, "%s answers with %.100q, and the step accepts %s", host, kind, s.Accept)
	case isJSON(kind):
		if bad := s.checkJSON(r.Header, body); bad.failed() {
			return bad
		}
		return s.readJSON(body)
	case s.WholeChunk || s.Response.Value != "":
		return failed(CodeBadResponse, false, "%s answers with %.100q, and the step wants a piece of JSON", host, kind)
	}
	if bad := s.leaked(body); bad.failed() {
		return bad
	}
	return outcome{answer: &answer{body, whole}}
}

func (s *step) unread(ctx context.Context, r *http.Response, body []byte, err error) outcome {
	host := s.templates.URL.Shown()
	const noGzip = "%s answers with what is said to be gzip (Content-Encoding) and is none, or is "
	switch {
	case errors.Is(err, errTooLarge):
		return failed(CodeTooLarge, false, "%s answers more than %v; max_bytes, and the operator's http.max_response, say "+
			"how much is taken", host, workqueue.Bytes(s.client.conns.HTTP.ResponseLimit(int(s.MaxBytes))))
	case ctx.Err() != nil || timedOut(err):
		return failed(CodeTimeout, true, "%s did not end its answer within %v", host, s.Timeout)
	case r.Uncompressed && notGzip(err):
		return failed(CodeBadCompression, false, noGzip+"damaged", host)
	case r.Uncompressed && len(body) == 0 && errors.Is(err, io.ErrUnexpectedEOF):
		return failed(CodeBadCompression, true, noGzip+"cut short", host)
	}
	return failed(CodeUnreachable, true, "%s ended its answer early", host)
}

// readJSON selects the plan's part of an answer, or all of it for a chunk.
func (s *step) readJSON(body []byte) outcome {
	if len(bytes.TrimSpace(body)) == 0 {
		body = []byte("null")
	}
	if s.WholeChunk {
		return outcome{answer: &answer{data: body}}
	}
	value, found := point(body, s.Response.Value)
	if !found {
		return failed(CodeBadResponse, false, "%s answers with JSON that has no %s", s.templates.URL.Shown(),
			s.Response.Value)
	}
	if bad := cmp.Or(s.flawed(value, wire.DefaultMaxDepth), s.leaked(value)); bad.failed() {
		return bad
	}
	return outcome{answer: &answer{data: value}}
}

func notGzip(err error) bool {
	_, corrupt := errors.AsType[flate.CorruptInputError](err)
	return corrupt || errors.Is(err, gzip.ErrHeader) || errors.Is(err, gzip.ErrChecksum)
}

func (s *step) checkJSON(h http.Header, body []byte) outcome {
	host := s.templates.URL.Shown()
	_, params, _ := mime.ParseMediaType(h.Get("Content-Type")) // already validated
	said := strings.ToLower(params["charset"])
	ascii := !bytes.ContainsFunc(body, func(c rune) bool { return c >= utf8.RuneSelf })
	switch {
	case bytes.HasPrefix(body, []byte("\uFEFF")):
		return failed(CodeByteOrderMark, false, "%s answers with a byte order mark in front of its JSON; make it answer "+
			"without", host)
	case !ascii && said != "" && said != "utf-8" && said != "utf8":
		return failed(CodeCharset, false, "%s answers with JSON that is said to be in %.40q; JSON is UTF-8: make it answer "+
			"in UTF-8", host, said)
	case len(bytes.TrimSpace(body)) == 0:
		return outcome{}
	case !jsontext.Value(body).IsValid(jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)):
		return failed(CodeBadResponse, false, "%s answers with what is said to be JSON and is none", host)
	case s.WholeChunk: // each result is checked separately
		return outcome{}
	}
	return s.flawed(body, math.MaxInt)
}

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

// contentType returns a media type without and with parameters. A response without one is JSON if valid as such.
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
