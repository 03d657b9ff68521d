package client

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"
)

// APIVersion is the version of the API that the package speaks.
const APIVersion = "v1"

// DefaultURL is where tranche serve listens unless told otherwise.
const DefaultURL = "http://127.0.0.1:8480"

const (
	prefix      = "/api/" + APIVersion
	actorHeader = "Tranche-Actor"
	// A connection to the server; then an error that names it.
	dialTimeout = 5 * time.Second
)

// Client talks to one server.
type Client struct {
	base    *url.URL
	token   string
	actor   string
	timeout time.Duration // 0: each operation's own
	http    *http.Client
}

// Option is a choice at the making of a Client.
type Option func(*Client) error

// WithToken has every request carry an API token. It goes to the server that the client was made for and nowhere else:
// redirects are not followed.
func WithToken(secret string) Option {
	return func(c *Client) error {
		if strings.ContainsFunc(secret, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return errors.New("the token holds spaces or characters that no token has")
		}
		c.token = secret
		return nil
	}
}

// WithActor says who asks, for the audit log. A server with authentication goes by the token instead.
func WithActor(name string) Option {
	return func(c *Client) error {
		c.actor = name
		return nil
	}
}

// WithTimeout says how long an answer may take to begin, and to end if it is one document. Without it each operation
// has its own time, which is more than the server takes at most.
func WithTimeout(d time.Duration) Option {
	return func(c *Client) error {
		if d < 0 {
			return fmt.Errorf("the timeout is %s; it must not be negative", d)
		}
		c.timeout = d
		return nil
	}
}

// WithTransport sets what carries the requests, like an http.Transport with certificates.
func WithTransport(t http.RoundTripper) Option {
	return func(c *Client) error {
		c.http.Transport = t
		return nil
	}
}

// New returns a client of the server at base, like [DefaultURL]. The URL may have a path, of a proxy that serves
// Tranche below it, and may be that of the API, as serve prints it: with /api/v1 at its end.
func New(base string, options ...Option) (*Client, error) {
	parsed, err := url.Parse(strings.TrimSuffix(strings.TrimSuffix(base, "/"), prefix))
	if err != nil || parsed.Host == "" || parsed.Scheme != "http" && parsed.Scheme != "https" {
		return nil, fmt.Errorf("%q is not the URL of a server, like %s", base, DefaultURL)
	}
	c := &Client{base: parsed, http: &http.Client{
		Transport: &http.Transport{
			Proxy:       http.ProxyFromEnvironment,
			DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext, ForceAttemptHTTP2: true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	for _, option := range options {
		if err := option(c); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Close closes connections that are idle. The client can still be used.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// call is how one request differs from others.
type call struct {
	raw    *[]byte
	header *http.Header
	sent   http.Header
	wait   time.Duration
}

// CallOption is a choice for one request.
type CallOption func(*call)

// Raw keeps the answer as it was sent, beside what it is decoded to. Of an answer that says no, nothing is kept.
func Raw(into *[]byte) CallOption { return func(c *call) { c.raw = into } }

// ResponseHeader keeps the header of the answer: an ETag, or Idempotency-Replayed.
func ResponseHeader(into *http.Header) CallOption { return func(c *call) { c.header = into } }

// IfNoneMatch asks only for what is different from what had this ETag; what is not is [ErrNotModified].
func IfNoneMatch(etag string) CallOption { return with("If-None-Match", etag) }

// IdempotencyKey makes a change happen once, however often it is asked for with the same key within a day. A key used
// for something else before is refused.
func IdempotencyKey(key string) CallOption { return with("Idempotency-Key", key) }

// LastEventID has a stream of events begin after one that was seen.
func LastEventID(id string) CallOption { return with(lastEventID, id) }

// Within sets how long the answer to this request may take, as [WithTimeout] does for all.
func Within(d time.Duration) CallOption { return func(c *call) { c.wait = d } }

func with(name, value string) CallOption {
	return func(c *call) {
		if value != "" {
			c.sent.Set(name, value)
		}
	}
}

// called gathers the options of a request; usual is its time when no one chose one.
func (c *Client) called(options []CallOption, usual time.Duration) *call {
	out := &call{sent: http.Header{}}
	for _, option := range options {
		option(out)
	}
	out.wait = cmp.Or(out.wait, c.timeout, usual)
	return out
}
