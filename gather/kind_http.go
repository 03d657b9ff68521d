package gather

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/gather/template"
	"github.com/tranchehq/tranche/workqueue"
)

// Defaults of http steps.
const (
	DefaultHTTPConcurrency = 8
	// DefaultHTTPTimeout is the default of `http.timeout`, for one request.
	DefaultHTTPTimeout   = 30 * time.Second
	DefaultHTTPMaxBytes  = 4 << 20
	DefaultHTTPRedirects = 3
)

// HTTP describes calls of an external service, one per item or, with WholeChunk, one per chunk. URL, Headers and Body
// are templates; see package template.
//
// The result is the service's answer: JSON, or the raw bytes with their content type. Response selects part of a JSON
// answer.
type HTTP struct {
	URL         string             `json:"url"`
	Method      string             `json:"method" enum:"GET,POST,PUT,PATCH,DELETE"` // "": GET, or POST with Body
	Headers     map[string]string  `json:"headers,omitempty" want:"headers by their names, like Accept: text/csv"`
	Body        JSON               `json:"body,omitempty"`
	Accept      string             `json:"accept,omitempty"`      // required content type of the answer; "": any
	WholeChunk  bool               `json:"whole_chunk,omitempty"` // one request per chunk
	Concurrency int                `json:"concurrency"`           // parallel requests per node and step; 1 to 256
	Timeout     workqueue.Duration `json:"timeout"`               // of one request; 1ms to 1h
	MaxBytes    workqueue.Bytes    `json:"max_bytes"`             // of one response; 1 to 256 MiB, if allowed
	Redirects   int                `json:"redirects"`             // followed; 0 to 10
	Response    HTTPResponse       `json:"response,omitzero"`
}

// HTTPResponse locates results in a response by JSON pointers (RFC 6901).
type HTTPResponse struct {
	// Items, with WholeChunk, locates the list of results, or the object that maps keys to them; "": the whole response.
	Items string `json:"items,omitempty"`
	// Key, with WholeChunk, locates the item's key in a result of a list.
	Key string `json:"key,omitempty"`
	// Value locates the part in a result, or in the response without WholeChunk; "": all of it.
	Value string `json:"value,omitempty"`
}

// JSON is any JSON value in canonical form: equal values have equal bytes.
type JSON []byte

// MarshalJSON returns j.
func (j JSON) MarshalJSON() ([]byte, error) { return j, nil }

// UnmarshalJSON stores the value with sorted names.
func (j *JSON) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	var value any
	if err := d.Decode(&value); err != nil {
		return err
	}
	sorted, err := json.Marshal(value)
	*j = sorted
	return err
}

func (h *HTTP) host() string {
	fixed, _, _ := strings.Cut(h.URL, "{")
	u, err := url.Parse(fixed)
	if err != nil {
		return ""
	}
	return u.Host
}

func (h *HTTP) clone() *HTTP {
	if h == nil {
		return nil
	}
	out := *h
	out.Headers, out.Body = maps.Clone(h.Headers), slices.Clone(h.Body)
	return &out
}

func defaultHTTP() *HTTP {
	return &HTTP{
		Concurrency: DefaultHTTPConcurrency, Timeout: workqueue.Duration(DefaultHTTPTimeout), MaxBytes: DefaultHTTPMaxBytes,
		Redirects: DefaultHTTPRedirects,
	}
}

// withDefaults replaces zero values by defaults, except Redirects, where zero means none.
func (h *HTTP) withDefaults() {
	if h == nil {
		return
	}
	d := defaultHTTP()
	h.Method = cmp.Or(h.Method, h.defaultMethod())
	h.Concurrency = cmp.Or(h.Concurrency, d.Concurrency)
	h.Timeout = cmp.Or(h.Timeout, d.Timeout)
	h.MaxBytes = cmp.Or(h.MaxBytes, d.MaxBytes)
}

func (h *HTTP) defaultMethod() string {
	if h.Body == nil {
		return "GET"
	}
	return "POST"
}

// Templates are the parsed templates of an http step.
type Templates struct {
	URL     *template.URL
	Headers map[string]*template.Text
	Body    *template.Body // nil without a body
}

// Parse parses the templates with these variables. The error is a *FieldError, of a field such as headers.Accept.
func (h *HTTP) Parse(variables template.Variables) (*Templates, error) {
	variables.Many = h.WholeChunk
	t := &Templates{Headers: map[string]*template.Text{}}
	var err error
	if t.URL, err = template.ParseURL(h.URL, variables); err != nil {
		return nil, fieldError("url", "%v", err)
	}
	for _, name := range slices.Sorted(maps.Keys(h.Headers)) {
		if t.Headers[name], err = template.ParseText(h.Headers[name], variables); err != nil {
			return nil, fieldError("headers."+name, "%v", err)
		}
	}
	if h.Body == nil {
		return t, nil
	}
	if t.Body, err = template.ParseBody(h.Body, variables); err != nil {
		return nil, fieldError("body", "%v", err)
	}
	return t, nil
}

// Secrets returns the names of the secrets used, without duplicates.
func (t *Templates) Secrets() []string {
	var names []string
	for _, name := range slices.Sorted(maps.Keys(t.Headers)) {
		names = append(names, t.Headers[name].Secrets()...)
	}
	if t.Body != nil {
		names = append(names, t.Body.Secrets()...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Limits of http steps.
const (
	MaxHTTPConcurrency = 256
	// MaxHTTPTimeout bounds `http.timeout`, for one request.
	MaxHTTPTimeout   = time.Hour
	MaxHTTPMaxBytes  = 256 << 20
	MaxHTTPRedirects = 10

	maxHeaders     = 50
	maxHeaderBytes = 4 << 10
	maxBodyBytes   = 32 << 10
	maxPointer     = 1 << 10
)

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
	_, err := h.Parse(template.Variables{Item: s.SeesItem(), Parts: s.InputParts()})
	if field, ok := errors.AsType[*FieldError](err); ok {
		return fieldError(prefix+field.Field, "%s", field.Problem)
	}
	if err != nil {
		return err
	}
	return h.Response.validate(h.WholeChunk, prefix+"response.")
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
		{"max_bytes", int(h.MaxBytes), 1, MaxHTTPMaxBytes},
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

// reservedHeaders control the transmission and are not allowed in plans.
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
			return fieldError(strings.TrimSuffix(prefix, "."), "invalid header name %.60q: use letters, digits and dashes",
				name)
		case lower == "accept":
			return fieldError(prefix+name, "use accept: TYPE next to url instead; answers of other types are then refused")
		case slices.Contains(reservedHeaders(), lower):
			return fieldError(prefix+name, "this header says how a request is sent; it is not for plans to say")
		case seen[lower]:
			return fieldError(prefix+name, "it appears twice")
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

// headerName reports whether text is a token (RFC 9110).
func headerName(text string) bool {
	return text != "" && len(text) <= 128 && !strings.ContainsFunc(text, func(c rune) bool {
		word := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		return !word && !strings.ContainsRune("!#$%&'*+-.^_`|~", c)
	})
}

// HeaderText reports whether text is valid in a header value: it has no line breaks.
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
			return fieldError(prefix+p.name, "%.60q is not a JSON pointer; want one like /data/0/id", p.pointer)
		}
	}
	if !many && (r.Items != "" || r.Key != "") {
		return fieldError(prefix+"items", "items and key are about whole_chunk: true, where a response has the results of "+
			"a chunk")
	}
	return nil
}
