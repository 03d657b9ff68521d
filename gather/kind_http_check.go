package gather

import (
	"errors"
	"maps"
	"mime"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Limits of steps of kind http.
const (
	MaxHTTPConcurrency = 256
	// `http.timeout`: one request.
	MaxHTTPTimeout   = time.Hour
	MaxHTTPMaxBytes  = 256 << 20
	MaxHTTPRedirects = 10

	maxHeaders     = 50
	maxHeaderBytes = 4 << 10
	maxBodyBytes   = 32 << 10
	maxPointer     = 1 << 10
)

// validate checks the settings of the step, whose fields begin with prefix.
func (h *HTTP) validate(s *Step, prefix string) error {
	if err := h.validateValues(prefix); err != nil {
		return err
	}
	if err := h.validateHeaders(prefix + "headers."); err != nil {
		return err
	}
	if len(h.Body) > maxBodyBytes {
		return fieldError(prefix+"body", "it has %d bytes; at most %d are allowed", len(h.Body), maxBodyBytes)
	}
	if h.URL == "" {
		return fieldError(prefix+"url", "a URL is needed, like http://127.0.0.1:8081/branches/{key}")
	}
	_, err := h.Parse(s.variables())
	if field, ok := errors.AsType[*FieldError](err); ok {
		return fieldError(prefix+field.Field, "%s", field.Problem)
	}
	if err != nil {
		return err
	}
	return h.Response.validate(h.Many, prefix+"response.")
}

func (h *HTTP) validateValues(prefix string) error {
	methods := []string{"GET", "POST", "PUT", "PATCH", "DELETE"}
	if !slices.Contains(methods, h.Method) {
		return fieldError(prefix+"method", "%.20q is not one of %s", h.Method, strings.Join(methods, ", "))
	}
	if h.Body != nil && h.Method == http.MethodGet {
		return fieldError(prefix+"method", "a GET has no body; use POST, or put the values into the URL")
	}
	for _, n := range []struct {
		name            string
		value, min, max int
	}{
		{"concurrency", h.Concurrency, 1, MaxHTTPConcurrency},
		{"max_bytes", h.MaxBytes, 1, MaxHTTPMaxBytes},
		{"redirects", h.Redirects, 0, MaxHTTPRedirects},
	} {
		if n.value < n.min || n.value > n.max {
			return fieldError(prefix+n.name, "%d is not within %d to %d", n.value, n.min, n.max)
		}
	}
	if d := time.Duration(h.Timeout); d < minTimeout || d > MaxHTTPTimeout {
		return fieldError(prefix+"timeout", "%v is not within %v to %v", d, minTimeout, MaxHTTPTimeout)
	}
	if h.Accept == "" {
		return nil
	}
	if kind, _, err := mime.ParseMediaType(h.Accept); err != nil || kind != h.Accept || strings.Contains(kind, "*") ||
		!strings.Contains(kind, "/") {
		return fieldError(prefix+"accept", "%.60q: want one content type, like application/json", h.Accept)
	}
	return nil
}

// reservedHeaders are those that say how a message is sent, and are not for plans to say.
func reservedHeaders() []string {
	return []string{"host", "content-length", "transfer-encoding", "connection", "upgrade", "te", "trailer", "keep-alive",
		"expect", "accept-encoding", "proxy-connection", "proxy-authorization", "accept"}
}

func (h *HTTP) validateHeaders(prefix string) error {
	if len(h.Headers) > maxHeaders {
		return fieldError(strings.TrimSuffix(prefix, "."), "%d headers; at most %d are allowed", len(h.Headers), maxHeaders)
	}
	seen := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(h.Headers)) {
		lower := strings.ToLower(name)
		switch {
		case !headerName(name):
			return fieldError(strings.TrimSuffix(prefix, "."), "%.60q is no name of a header: use letters, digits and dashes",
				name)
		case lower == "accept":
			return fieldError(prefix+name, "say accept: TYPE beside url in its place; other answers are refused then")
		case slices.Contains(reservedHeaders(), lower):
			return fieldError(prefix+name, "this header says how a request is sent; it is not for plans to say")
		case seen[lower]:
			return fieldError(prefix+name, "it stands twice")
		case len(h.Headers[name]) > maxHeaderBytes:
			return fieldError(prefix+name, "it has %d bytes; at most %d are allowed", len(h.Headers[name]),
				maxHeaderBytes)
		case !HeaderText(h.Headers[name]):
			return fieldError(prefix+name, "line breaks and other control characters are not part of headers")
		}
		seen[lower] = true
	}
	return nil
}

// headerName reports whether a text is what RFC 9110 calls a token.
func headerName(text string) bool {
	return text != "" && len(text) <= 128 && !strings.ContainsFunc(text, func(c rune) bool {
		word := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		return !word && !strings.ContainsRune("!#$%&'*+-.^_`|~", c)
	})
}

// HeaderText reports whether a text can be the value of a header: it breaks no line.
func HeaderText(text string) bool {
	return !strings.ContainsFunc(text, func(c rune) bool { return c < ' ' && c != '\t' || c == 0x7f })
}

func (r *HTTPResponse) validate(many bool, prefix string) error {
	for _, p := range []struct{ name, pointer string }{{"items", r.Items}, {"key", r.Key}, {"value", r.Value}} {
		bad := p.pointer != "" && p.pointer[0] != '/' || len(p.pointer) > maxPointer
		for _, escape := range strings.Split(p.pointer, "~")[1:] {
			bad = bad || !strings.HasPrefix(escape, "0") && !strings.HasPrefix(escape, "1")
		}
		if bad {
			return fieldError(prefix+p.name, "%.60q is no JSON pointer; want one like /data/0/id", p.pointer)
		}
	}
	if !many && (r.Items != "" || r.Key != "") {
		return fieldError(prefix+"items", "items and key are about many: true, where a response has the results of a chunk")
	}
	return nil
}
