package httpfetch

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"time"
	"unicode"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather/template"
	"github.com/tranchehq/tranche/internal/connections"
)

// Codes of errors, in addition to those of wire.Flaw. Codes of overloaded services are throttled codes in package
// workqueue: they do not count against items.
const (
	CodeBadStep      = "bad_step"          // settings unknown to this version; permanent
	CodeNoSecret     = "no_secret"         // this node lacks it, or it is not for the host; permanent
	CodeMissingValue = "missing_value"     // a template has no value for the item; permanent
	CodeBadHeader    = "bad_header"        // a value is not allowed in a header; permanent
	CodeURLTooLong   = "url_too_long"      // permanent; a chunk is halved
	CodeAddress      = "address_refused"   // a private address that the operator has not allowed; permanent
	CodeRedirect     = "redirect_refused"  // permanent
	CodeUnreachable  = "unreachable"       // no connection, or a broken one; retryable
	CodeTLS          = "tls_error"         // the service's certificate is not trusted; permanent
	CodeTimeout      = "timeout"           // no answer before the timeout; retryable
	CodeNotFound     = "not_found"         // 404, or no result for the key; permanent
	CodeGone         = "gone"              // 410; permanent
	CodeBadRequest   = "bad_request"       // 400, 422; permanent
	CodeUnauthorized = "unauthorized"      // 401; permanent
	CodeForbidden    = "forbidden"         // 403; permanent
	CodeConflict     = "conflict"          // 409; permanent
	CodeThrottled    = "too_many_requests" // 429, or the host asked for a pause; retryable
	CodeOverloaded   = "overloaded"        // 503 with Retry-After; retryable
	CodeUnavailable  = "unavailable"       // 502, 503, 504; retryable
	CodeServerError  = "server_error"      // 500 and above; retryable
	CodeTooLarge     = "result_too_large"  // permanent; a chunk is halved
	CodeBadResponse  = "bad_response"      // contradicts the content type or the plan; permanent

	CodeSecret = "secret_in_result" // the response repeats a secret of the plan; permanent

	CodeBadCompression = "bad_compression"     // not gzip, or invalid; permanent, unless it may have been cut
	CodeByteOrderMark  = "byte_order_mark"     // before JSON; permanent
	CodeCharset        = "unsupported_charset" // JSON declared in an encoding other than UTF-8; permanent
)

type outcome struct {
	slot   wire.SlotError // no error if the code is empty
	down   bool           // no answer: the service may be down
	later  bool           // the host asked for a pause, perhaps over by now
	answer *answer
}

func failed(code string, retry bool, format string, args ...any) outcome {
	return outcome{slot: wire.SlotError{Code: code, Message: fmt.Sprintf(format, args...), Retry: retry}}
}

func (s *step) flawed(value []byte, maxDepth int) outcome {
	flaw := wire.FlawOf(value, maxDepth)
	if flaw == nil {
		return outcome{}
	}
	return failed(flaw.Code, false, "%s answers with JSON %s%s", s.templates.URL.Shown(), flaw.Words,
		s.quoted([]byte(flaw.At)))
}

// leaked fails a result in which the service repeats a secret that it was sent: results are shown to viewers.
func (s *step) leaked(result []byte) outcome {
	if len(s.templates.Secrets()) == 0 || s.client.conns.Redact(string(result)) == string(result) {
		return outcome{}
	}
	return failed(CodeSecret, false, "%s returned a secret that it was sent; remove it from the response",
		s.templates.URL.Shown())
}

func (o outcome) failed() bool { return o.slot.Code != "" }

func (s *step) templateFailed(what string, err error) outcome {
	if long, ok := errors.AsType[*template.TooLongError](err); ok {
		return failed(CodeURLTooLong, false, "%v", long)
	}
	if missing, ok := errors.AsType[*template.Error](err); ok {
		return failed(CodeMissingValue, false, "%s: %v", what, missing)
	}
	return failed(CodeNoSecret, false, "%s: %s", what, s.client.conns.Redact(err.Error()))
}

// sendFailed returns the outcome for a request without a response. It omits err's text, which contains the URL.
func (s *step) sendFailed(ctx context.Context, err error) outcome {
	host := s.templates.URL.Shown()
	if _, refused := errors.AsType[*addressError](err); refused {
		return failed(CodeAddress, false, "%s: %v", host, &addressError{})
	}
	if redirect := refusedRedirect(err); redirect != nil {
		return failed(CodeRedirect, false, "%s: %v", host, redirect)
	}
	if ctx.Err() != nil || timedOut(err) {
		out := failed(CodeTimeout, true, "%s did not answer within %v", host, s.Timeout)
		out.down = true
		return out
	}
	if why, bad := untrusted(err); bad {
		return failed(CodeTLS, false, "%s: %s", host, why)
	}
	out := failed(CodeUnreachable, true, "%s: %s", host, broken(err))
	out.down = true
	return out
}

func timedOut(err error) bool {
	timeout, ok := errors.AsType[net.Error](err)
	return ok && timeout.Timeout()
}

func untrusted(err error) (why string, bad bool) {
	if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
		return "its certificate is signed by an authority that this node does not know; the operator's http.hosts can " +
			"name one (ca)", true
	}
	if _, ok := errors.AsType[x509.HostnameError](err); ok {
		return "its certificate is for another host", true
	}
	if invalid, ok := errors.AsType[x509.CertificateInvalidError](err); ok {
		if invalid.Reason == x509.Expired {
			return "its certificate has expired, or is not valid yet", true
		}
		return "its certificate is not valid", true
	}
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "its certificate is not trusted", true
	}
	// A TLS alert is such an error.
	if op, ok := errors.AsType[*net.OpError](err); ok && (op.Op == "remote error" || op.Op == "local error") {
		return "it refuses this node's certificate, or how it speaks TLS", true
	}
	if _, ok := errors.AsType[tls.RecordHeaderError](err); ok {
		return "it does not speak TLS", true
	}
	return "", false
}

// broken returns why there is no response, without err's text.
func broken(err error) string {
	if _, ok := errors.AsType[*net.DNSError](err); ok {
		return "its name cannot be looked up"
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return "there is no connection to it"
	}
	return "the connection broke, or what came was no HTTP"
}

func (s *step) statusFailed(status int, header http.Header, said string) outcome {
	code, retry := codeOf(status)
	wait, rest := retryAfter(header, time.Now())
	if status == http.StatusServiceUnavailable && rest {
		code = CodeOverloaded
	}
	if rest && (code == CodeOverloaded || code == CodeThrottled) {
		said = fmt.Sprintf(" (Retry-After, taken as %v)%s", min(wait, longestRest).Round(time.Second), said)
	}
	out := failed(code, retry, "%s answers %d %s%s", s.templates.URL.Shown(), status, http.StatusText(status), said)
	out.down = code == CodeUnavailable
	return out
}

func codeOf(status int) (code string, retry bool) {
	switch status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity:
		return CodeBadRequest, false
	case http.StatusUnauthorized:
		return CodeUnauthorized, false
	case http.StatusForbidden:
		return CodeForbidden, false
	case http.StatusNotFound:
		return CodeNotFound, false
	case http.StatusGone:
		return CodeGone, false
	case http.StatusConflict:
		return CodeConflict, false
	case http.StatusRequestTimeout, http.StatusTooEarly:
		return CodeTimeout, true
	case http.StatusTooManyRequests:
		return CodeThrottled, true
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return CodeUnavailable, true
	case http.StatusNotImplemented, http.StatusHTTPVersionNotSupported:
		return fmt.Sprintf("http_%d", status), false
	}
	switch {
	case status >= 500:
		return CodeServerError, true
	case status >= 300 && status < 400:
		return CodeRedirect, false
	}
	return fmt.Sprintf("http_%d", status), false
}

// maxSaid bounds the characters quoted from a service's error.
const maxSaid = 200

// quoted returns what follows "answers …" in a message: the beginning of what the service said.
func (s *step) quoted(body []byte) string {
	said := oneLine(s.client.conns, body)
	switch {
	case len(said) == 0:
		return ""
	case len(said) > maxSaid:
		return ": " + string(said[:maxSaid]) + "…"
	}
	return ": " + string(said)
}

// oneLine returns foreign text on one line, without secrets.
func oneLine(conns *connections.Connections, body []byte) []rune {
	text := conns.Redact(strings.ToValidUTF8(string(body), "\uFFFD"))
	unfit := func(c rune) bool { return unicode.IsSpace(c) || !unicode.IsPrint(c) }
	return []rune(strings.Join(strings.FieldsFunc(text, unfit), " "))
}
