package client

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync/atomic"
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
	bases   []*url.URL   // at least one
	at      atomic.Int32 // which of them is called
	token   string
	actor   string
	timeout time.Duration // 0: each operation's own
	each    []CallOption
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

// WithEach makes choices for each request.
func WithEach(options ...CallOption) Option {
	return func(c *Client) error {
		c.each = options
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

// WithCA trusts the authorities of a PEM file in addition to the system's.
func WithCA(file string) Option {
	return func(c *Client) error {
		pool, err := Authorities(file)
		if err == nil {
			c.http.Transport = transport(&tls.Config{RootCAs: pool})
		}
		return err
	}
}

// Authorities are the system's and those of a PEM file.
func Authorities(file string) (*x509.CertPool, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	pool, err := x509.SystemCertPool()
	if err != nil {
		return nil, err
	}
	if !pool.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificate in PEM", file)
	}
	return pool, nil
}

func transport(secure *tls.Config) *http.Transport {
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, TLSClientConfig: secure,
		DialContext: (&net.Dialer{Timeout: dialTimeout}).DialContext, ForceAttemptHTTP2: true,
	}
}

// New returns a client of the server at base, like [DefaultURL]. The URL may have a path, of a proxy that serves
// Tranche below it, and may be that of the API, as serve prints it: with /api/v1 at its end. Several, with commas
// between, are the nodes of one installation: when one cannot be connected to, the next is called.
func New(base string, options ...Option) (*Client, error) {
	c := &Client{http: &http.Client{
		Transport:     transport(nil),
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	for one := range strings.SplitSeq(base, ",") {
		parsed, err := url.Parse(strings.TrimSuffix(strings.TrimSuffix(strings.TrimSpace(one), "/"), prefix))
		if err != nil || parsed.Host == "" || parsed.Scheme != "http" && parsed.Scheme != "https" {
			return nil, fmt.Errorf("%q is not the URL of a server, like %s", one, DefaultURL)
		}
		c.bases = append(c.bases, parsed)
	}
	for _, option := range options {
		if err := option(c); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// base is the server that is called.
func (c *Client) base() *url.URL { return c.bases[c.at.Load()] }

// all are the servers, for people.
func (c *Client) all() string {
	var urls []string
	for _, base := range c.bases {
		urls = append(urls, base.Redacted())
	}
	return strings.Join(urls, ", ")
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
	for _, option := range slices.Concat(c.each, options) {
		option(out)
	}
	out.wait = cmp.Or(out.wait, c.timeout, usual)
	return out
}
