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

// APIVersion is the version of the API that the package uses.
const APIVersion = "v1"

// DefaultURL is the URL of tranche serve by default.
const DefaultURL = "http://127.0.0.1:8480"

const (
	prefix      = "/api/" + APIVersion
	actorHeader = "Tranche-Actor"
	// dialTimeout limits a connection attempt, which then fails with UnreachableError.
	dialTimeout = 5 * time.Second
)

// Client calls one installation.
type Client struct {
	bases   []*url.URL   // at least one; see New
	at      atomic.Int32 // index of the server in use
	token   string
	actor   string
	timeout time.Duration // 0: that of the operation
	each    []CallOption
	http    *http.Client
	secure  *tls.Config // of the default transport
}

// Option configures a Client.
type Option func(*Client) error

// WithToken sends an API token with every request. Redirects are not followed, so only the given servers get it.
func WithToken(secret string) Option {
	return func(c *Client) error {
		if strings.ContainsFunc(secret, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return errors.New("the token holds spaces or characters that no token has")
		}
		c.token = secret
		return nil
	}
}

// WithActor names the caller for the audit log. A server with authentication uses the token's name instead.
func WithActor(name string) Option {
	return func(c *Client) error {
		c.actor = name
		return nil
	}
}

// WithTimeout limits the time until an answer begins, and for a single document until it ends. By default each
// operation has its own timeout, longer than the server may take.
func WithTimeout(d time.Duration) Option {
	return func(c *Client) error {
		if d < 0 {
			return fmt.Errorf("the timeout is %s; it must not be negative", d)
		}
		c.timeout = d
		return nil
	}
}

// WithEach sets options for every request.
func WithEach(options ...CallOption) Option {
	return func(c *Client) error {
		c.each = options
		return nil
	}
}

// WithTransport sets the transport of requests, which replaces [WithCA] and [WithCertificate].
func WithTransport(t http.RoundTripper) Option {
	return func(c *Client) error {
		c.http.Transport = t
		return nil
	}
}

// WithCA trusts the authorities of a PEM file in addition to the system's.
func WithCA(file string) Option {
	return func(c *Client) (err error) {
		c.secure.RootCAs, err = Authorities(file)
		return err
	}
}

// WithCertificate presents a client certificate, which PEM files hold with its key.
func WithCertificate(certFile, keyFile string) Option {
	return func(c *Client) error {
		pair, err := tls.LoadX509KeyPair(certFile, keyFile)
		c.secure.Certificates = []tls.Certificate{pair}
		return err
	}
}

// Authorities returns the system's authorities and those of a PEM file.
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

// New returns a client of the server at base, like [DefaultURL]. The URL may have a path if a proxy serves Tranche
// below it, and may end with /api/v1, as printed by serve. Several URLs, separated by commas, are nodes of one
// installation: when one is unreachable, the next is called.
func New(base string, options ...Option) (*Client, error) {
	secure := new(tls.Config)
	c := &Client{secure: secure, http: &http.Client{
		Transport:     transport(secure),
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

func (c *Client) base() *url.URL { return c.bases[c.at.Load()] }

// RunPage returns the URL of a run's page in the dashboard, at the server that answered last.
func (c *Client) RunPage(run string) string {
	page := c.base().JoinPath("runs", run)
	page.User = nil
	return page.String()
}

func (c *Client) all() string {
	var urls []string
	for _, base := range c.bases {
		urls = append(urls, base.Redacted())
	}
	return strings.Join(urls, ", ")
}

// Close closes idle connections. The client can still be used.
func (c *Client) Close() { c.http.CloseIdleConnections() }

type call struct {
	raw    *[]byte
	header *http.Header
	sent   http.Header
	wait   time.Duration
}

// CallOption configures one request.
type CallOption func(*call)

// Raw saves the answer's body as received, unless it is an error.
func Raw(into *[]byte) CallOption { return func(c *call) { c.raw = into } }

// ResponseHeader saves the header of the answer, for example ETag or Idempotency-Replayed.
func ResponseHeader(into *http.Header) CallOption { return func(c *call) { c.header = into } }

// IfNoneMatch returns [ErrNotModified] instead of an answer that still has this ETag.
func IfNoneMatch(etag string) CallOption { return with("If-None-Match", etag) }

// Namespace limits a request to a namespace, and what it makes is owned by it. Empty: all that the token allows.
func Namespace(name string) CallOption { return with("Tranche-Namespace", name) }

// IdempotencyKey makes a change happen once, however often it is requested with the same key within a day. A key used
// for another change is refused.
func IdempotencyKey(key string) CallOption { return with("Idempotency-Key", key) }

// LastEventID resumes a stream of events after the one with this id.
func LastEventID(id string) CallOption { return with(lastEventID, id) }

// Within limits the time of the answer to this request, as [WithTimeout] does for all.
func Within(d time.Duration) CallOption { return func(c *call) { c.wait = d } }

func with(name, value string) CallOption {
	return func(c *call) {
		if value != "" {
			c.sent.Set(name, value)
		}
	}
}

func (c *Client) called(options []CallOption, usual time.Duration) *call {
	out := &call{sent: http.Header{}}
	for _, option := range slices.Concat(c.each, options) {
		option(out)
	}
	out.wait = cmp.Or(out.wait, c.timeout, usual)
	return out
}
