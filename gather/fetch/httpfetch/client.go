// Package httpfetch implements steps of kind http: it calls external services, with several parallel requests for
// single items or with one per chunk.
//
//   - Loopback and private addresses are reached only if the operator's file allows them. The address is checked when
//     the connection is made, so DNS changes, unusual notations and redirects do not matter.
//   - A secret is sent only to the hosts that the operator's file names. Redirects to other hosts get neither secrets
//     nor other headers of the plan. Errors contain no secrets; quoted responses are redacted.
//   - Proxy settings of the environment are ignored.
//   - Responses are limited in size and time. JSON is checked; other content keeps its content type.
//   - An item that a service does not know or rejects fails alone. If the service does not answer at all, the chunk
//     fails and no item is blamed.
//   - After a Retry-After nothing is sent to that host until RestsUntil. Short pauses are waited for.
//
// The node does retries, by error codes, and enforces a host's budget over all nodes. A Client serves a whole node
// and is safe for concurrent use.
package httpfetch

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/gather/template"
	"github.com/tranchehq/tranche/internal/connections"
	"github.com/tranchehq/tranche/workqueue"
)

// Defaults of Config.
const (
	DefaultConnectTimeout = 5 * time.Second
	DefaultUserAgent      = "tranche"
)

// maxSteps bounds the cache of parsed steps.
const maxSteps = 256

// Config configures a Client. Zero fields mean defaults.
type Config struct {
	UserAgent      string
	ConnectTimeout time.Duration // of a connection with DNS lookup; the same again for TLS
	Resolver       *net.Resolver // nil: the system's
}

// Client calls HTTP services.
type Client struct {
	conns      *connections.Connections
	cfg        Config
	transports *transports
	rests      rests

	mu     sync.Mutex
	steps  map[string]*step // by settings
	shares map[shareKey]*share
}

// New returns a client with an operator's connections, or none if nil.
func New(conns *connections.Connections, cfg Config) (*Client, error) {
	conns = cmp.Or(conns, &connections.Connections{})
	cfg.UserAgent = cmp.Or(cfg.UserAgent, DefaultUserAgent)
	cfg.ConnectTimeout = cmp.Or(cfg.ConnectTimeout, DefaultConnectTimeout)
	if cfg.ConnectTimeout < 0 || !gather.HeaderText(cfg.UserAgent) {
		return nil, fmt.Errorf("httpfetch: Config.ConnectTimeout %s or UserAgent %q is invalid", cfg.ConnectTimeout,
			cfg.UserAgent)
	}
	c := &Client{conns: conns, cfg: cfg, steps: map[string]*step{}, shares: map[shareKey]*share{}}
	c.transports = newTransports(c)
	return c, nil
}

// Close closes idle connections.
func (c *Client) Close() { c.transports.close() }

// RestsUntil returns until when a host (http:127.0.0.1:8081) asked not to be called; zero or past: not at all.
func (c *Client) RestsUntil(paceKey string) time.Time { return c.rests.until(paceKey) }

// Fetcher returns the fetcher of a step with these settings, the JSON of gather.HTTP. The error is a *wire.SlotError
// for all items: settings unknown to this version, or secrets that this node lacks.
func (c *Client) Fetcher(config []byte) (fetch.Fetcher, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.steps[string(config)]; s != nil {
		return s, nil
	}
	s, err := c.parse(config)
	if err != nil {
		return nil, err
	}
	if len(c.steps) >= maxSteps {
		clear(c.steps) // steps in use are parsed again
	}
	c.steps[string(config)] = s
	return s, nil
}

func (c *Client) parse(config []byte) (*step, error) {
	s := &step{client: c}
	if err := json.Unmarshal(config, &s.HTTP); err != nil {
		return nil, wire.Fail(CodeBadStep, "the step's settings cannot be read: %v", err)
	}
	var err error
	if s.templates, err = s.Parse(template.Variables{Any: true}); err != nil {
		return nil, wire.Fail(CodeBadStep, "%v", err)
	}
	s.base = s.templates.URL.Base()
	if err := s.checkSecrets(); err != nil {
		return nil, err
	}
	s.http = &http.Client{Transport: c.transports, CheckRedirect: s.checkRedirect}
	return s, nil
}

func (s *step) checkSecrets() error {
	for _, name := range s.templates.Secrets() {
		if _, err := s.secretValue(name); err != nil {
			return wire.Fail(CodeNoSecret, "%s", s.client.conns.Redact(err.Error()))
		}
	}
	return nil
}

// Transport returns a transport for requests outside steps, with the same rules on addresses. It neither follows
// redirects nor adds secrets. The caller must limit reading the response.
func (c *Client) Transport() http.RoundTripper { return c.transports }

// Explain returns why a request through Transport failed, without its URL, and whether a retry may succeed.
func Explain(err error) (why string, passes bool) {
	if _, refused := errors.AsType[*addressError](err); refused {
		return (&addressError{}).Error(), false
	}
	if redirect := refusedRedirect(err); redirect != nil {
		return redirect.Error(), false
	}
	if timedOut(err) || errors.Is(err, context.DeadlineExceeded) {
		return "it did not answer before its timeout", true
	}
	if why, bad := untrusted(err); bad {
		return why, false
	}
	return broken(err), true
}

// CheckURL returns an error if u may not be requested, as far as known without a DNS lookup.
func (c *Client) CheckURL(u *url.URL) error { return c.transports.checkLiteral(u) }

const (
	// idleConnection is after how long an unused connection is closed.
	idleConnection = time.Minute
	maxHeaderBytes = 64 << 10
)

// transports pools connections, separately for each host with settings: only it may see its client certificate.
type transports struct {
	client *Client
	plain  *http.Transport

	mu    sync.Mutex
	hosts map[*connections.Host]*http.Transport
}

func newTransports(c *Client) *transports {
	t := &transports{client: c, hosts: map[*connections.Host]*http.Transport{}}
	t.plain = t.make(&connections.Host{})
	return t
}

func (t *transports) make(host *connections.Host) *http.Transport {
	all := t.client.conns.HTTP
	conns := cmp.Or(host.MaxConnections, all.MaxConnections, connections.DefaultMaxHostConnections)
	made := &http.Transport{
		DialContext: t.client.dialer().DialContext,
		TLSClientConfig: &tls.Config{
			MinVersion: tls.VersionTLS12, RootCAs: host.RootCAs, Certificates: host.Certificates,
		},
		TLSHandshakeTimeout: t.client.cfg.ConnectTimeout,
		ForceAttemptHTTP2:   true,
		MaxConnsPerHost:     conns, MaxIdleConnsPerHost: conns, MaxIdleConns: 4 * conns,
		IdleConnTimeout:        idleConnection,
		MaxResponseHeaderBytes: maxHeaderBytes,
	}
	if all.Proxy != nil {
		made.Proxy = http.ProxyURL(all.Proxy)
	}
	return made
}

// RoundTrip sends a request through its host's pool.
func (t *transports) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.client.conns.HTTP.Proxy != nil {
		if err := t.checkLiteral(r.URL); err != nil { // a proxy connects, so guard sees only the proxy's address
			return nil, err
		}
	}
	host := t.client.conns.HTTP.Host(r.URL)
	if host == nil {
		return t.plain.RoundTrip(r)
	}
	t.mu.Lock()
	own := t.hosts[host]
	if own == nil {
		own = t.make(host)
		t.hosts[host] = own
	}
	t.mu.Unlock()
	return own.RoundTrip(r)
}

func (t *transports) checkLiteral(u *url.URL) error {
	host, text := workqueue.HostPort(u)
	at, err := netip.ParseAddr(host)
	if err != nil {
		return nil //nolint:nilerr // a name, which the proxy looks up
	}
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return &addressError{}
	}
	return checkAddress(netip.AddrPortFrom(at, uint16(port)), t.client.conns.HTTP.AllowPrivate)
}

func (t *transports) close() {
	t.plain.CloseIdleConnections()
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, own := range t.hosts {
		own.CloseIdleConnections()
	}
}

// redirectError is a redirect that was not followed. It omits the target, which the service controls.
type redirectError struct{ why string }

func (e *redirectError) Error() string { return "the service sends elsewhere, and " + e.why }

// checkRedirect decides whether to follow a redirect. The plan's headers go only to the host in the plan; after a
// redirect to another host they are not sent again, even if a later one returns.
func (s *step) checkRedirect(r *http.Request, via []*http.Request) error {
	if s.Redirects == 0 {
		return http.ErrUseLastResponse
	}
	if len(via) > s.Redirects {
		return &redirectError{"that too often; redirects says how often it may"}
	}
	r.Header.Del("Referer") // it contains the item's key
	from := via[len(via)-1].URL
	switch {
	case r.URL.Scheme != "https" && r.URL.Scheme != "http":
		return &redirectError{"to what is neither http nor https"}
	case from.Scheme == "https" && r.URL.Scheme == "http":
		return &redirectError{"away from https"}
	case r.URL.User != nil:
		return &redirectError{"gives a user for it"}
	}
	away := !sameHost(r.URL, s.base)
	for _, before := range via {
		away = away || !sameHost(before.URL, s.base)
	}
	if !away {
		return nil
	}
	if r.Body != nil && r.Body != http.NoBody || r.ContentLength > 0 {
		return &redirectError{"the body is not meant for another host"}
	}
	for name := range s.Headers {
		r.Header.Del(name)
	}
	r.Header.Del("Authorization")
	return nil
}

func sameHost(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && connections.HostPort(a) == connections.HostPort(b)
}

func refusedRedirect(err error) *redirectError {
	refused, _ := errors.AsType[*redirectError](err)
	return refused
}

// addressError means that an address is not allowed. It omits it: plan authors must not explore the network.
type addressError struct{}

func (*addressError) Error() string {
	return "it has an address of this machine or of a private network; the operator's http.allow_private says which of " +
		"those may be reached"
}

// special are non-public ranges unknown to netip. Some embed an IPv4 address, perhaps a private one.
var special = []netip.Prefix{ //nolint:gochecknoglobals // never changed
	netip.MustParsePrefix("0.0.0.0/8"),       // this network
	netip.MustParsePrefix("100.64.0.0/10"),   // carrier-grade NAT
	netip.MustParsePrefix("192.0.0.0/24"),    // protocols
	netip.MustParsePrefix("192.0.2.0/24"),    // documentation
	netip.MustParsePrefix("192.88.99.0/24"),  // relays
	netip.MustParsePrefix("198.18.0.0/15"),   // benchmarks
	netip.MustParsePrefix("198.51.100.0/24"), // documentation
	netip.MustParsePrefix("203.0.113.0/24"),  // documentation
	netip.MustParsePrefix("240.0.0.0/4"),     // reserved, and broadcast
	netip.MustParsePrefix("::/96"),           // embeds IPv4
	netip.MustParsePrefix("::ffff:0:0:0/96"), // embeds IPv4
	netip.MustParsePrefix("64:ff9b::/96"),    // embeds IPv4
	netip.MustParsePrefix("64:ff9b:1::/48"),  // embeds IPv4
	netip.MustParsePrefix("100::/64"),        // discard
	netip.MustParsePrefix("2001::/23"),       // protocols, and Teredo, which embeds IPv4
	netip.MustParsePrefix("2001:db8::/32"),   // documentation
	netip.MustParsePrefix("2002::/16"),       // embeds IPv4
	netip.MustParsePrefix("3fff::/20"),       // documentation
	netip.MustParsePrefix("5f00::/16"),       // segment routing
	netip.MustParsePrefix("fec0::/10"),       // formerly private
}

func public(address netip.Addr) bool {
	address = address.Unmap().WithZone("")
	return address.IsGlobalUnicast() && !address.IsPrivate() &&
		!slices.ContainsFunc(special, func(p netip.Prefix) bool { return p.Contains(address) })
}

func checkAddress(at netip.AddrPort, allowed []connections.Network) error {
	if public(at.Addr()) || slices.ContainsFunc(allowed, func(n connections.Network) bool { return n.Contains(at) }) {
		return nil
	}
	return &addressError{}
}

// guard is called for each address after its DNS lookup, before connecting.
func (c *Client) guard(_ context.Context, network, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil || network != "tcp4" && network != "tcp6" {
		return fmt.Errorf("connect: %s is not an address", network)
	}
	return checkAddress(at, c.conns.HTTP.AllowPrivate)
}

func (c *Client) dialer() *net.Dialer {
	return &net.Dialer{Timeout: c.cfg.ConnectTimeout, Resolver: c.cfg.Resolver, ControlContext: c.guard}
}
