package gather

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/tranchehq/tranche/gather/template"
	"github.com/tranchehq/tranche/workqueue"
)

// What a step of kind http uses when it does not say.
const (
	DefaultHTTPConcurrency = 8
	// `http.timeout`: one request.
	DefaultHTTPTimeout   = 30 * time.Second
	DefaultHTTPMaxBytes  = 4 << 20
	DefaultHTTPRedirects = 3
)

// HTTP is how an external service is asked: for one item with each request, or for a chunk with Many. URL, Headers and
// Body are templates; package template says what may stand in them.
//
// A part is what the service answers: JSON, or with any other content type the bytes as they are. Response picks
// a piece of JSON out of it.
type HTTP struct {
	URL         string             `json:"url"`
	Method      string             `json:"method"`            // GET, POST, PUT, PATCH, DELETE; "": GET, or POST with Body
	Headers     map[string]string  `json:"headers,omitempty"` // by name
	Body        JSON               `json:"body,omitempty"`
	Accept      string             `json:"accept,omitempty"` // the one content type that is taken; "": any
	Many        bool               `json:"many,omitempty"`   // one request for the chunk
	Concurrency int                `json:"concurrency"`      // requests at once, of a node for this step; 1 to 256
	Timeout     workqueue.Duration `json:"timeout"`          // of one request; 1ms to 1h
	MaxBytes    int                `json:"max_bytes"`        // of one response; 1 to 256 MiB; the operator may allow less
	Redirects   int                `json:"redirects"`        // that are followed; 0 to 10
	Response    HTTPResponse       `json:"response,omitzero"`
}

// HTTPResponse says by JSON pointers (RFC 6901) where a result stands in a response.
type HTTPResponse struct {
	// Items, with Many, is where the list of results stands, or the object that has them by their keys; "": the response
	// as a whole.
	Items string `json:"items,omitempty"`
	// Key, with Many, is where the item's key stands in a result of a list.
	Key string `json:"key,omitempty"`
	// Value is where the part stands in a result, or in the response without Many; "": all of it.
	Value string `json:"value,omitempty"`
}

// JSON is any JSON value. Two that mean the same are the same bytes.
type JSON []byte

// MarshalJSON writes it as it is.
func (j JSON) MarshalJSON() ([]byte, error) { return j, nil }

// UnmarshalJSON takes it over, with the names of objects in order.
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

// host is the host of the service, with its port when the URL has one, in lower case.
func (h *HTTP) host() string {
	fixed, _, _ := strings.Cut(h.URL, "{")
	u, err := url.Parse(fixed)
	if err != nil {
		return ""
	}
	return strings.ToLower(u.Host)
}

func (h *HTTP) clone() *HTTP {
	if h == nil {
		return nil
	}
	out := *h
	out.Headers, out.Body = maps.Clone(h.Headers), slices.Clone(h.Body)
	return &out
}

// defaultHTTP is what a plan in YAML starts from; what it does not say stays.
func defaultHTTP() *HTTP {
	return &HTTP{
		Concurrency: DefaultHTTPConcurrency, Timeout: workqueue.Duration(DefaultHTTPTimeout), MaxBytes: DefaultHTTPMaxBytes,
		Redirects: DefaultHTTPRedirects,
	}
}

// withDefaults fills in what is zero. Redirects stay: none is a setting.
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

// Templates are the templates of a step of kind http, parsed.
type Templates struct {
	URL     *template.URL
	Headers map[string]*template.Text
	Body    *template.Body // nil: none
}

// Parse reads the templates, in which the variables may be used that the step has. The error is a *FieldError whose
// field is like headers.Accept.
func (h *HTTP) Parse(variables template.Variables) (*Templates, error) {
	variables.Many = h.Many
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

// Secrets are the names of the secrets that the templates send, each once.
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

// variables are those that the step's templates may use.
func (s *Step) variables() template.Variables {
	return template.Variables{Item: s.SeesItem(), Parts: s.InputParts()}
}
