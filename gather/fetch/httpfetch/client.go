// Package httpfetch asks external HTTP services for the parts of a chunk: with one request for each item, some at once,
// or with one for the chunk. It is what steps of kind http do.
//
// Guarantees:
//
//   - Addresses of this machine and of private networks are reached only when the operator's file allows them. That is
//     looked at when the connection is made, on the address that it is made to: what a name means in between does not
//     matter, nor how an address is written, nor where a redirect leads.
//   - A secret goes to the hosts that the operator's file names, and nowhere else: no redirect takes it, or anything
//     else that the plan puts into headers, to another host. It stands in no error; what a service answers is cleaned
//     of it before it is quoted.
//   - Proxies of the environment are not used.
//   - A response is read up to a size and for a time. JSON is checked; anything else keeps its content type.
//   - An item that a service does not know, or refuses, has an error of its own. When nothing comes of a service at all
//     the chunk fails as a whole and its items are not to blame.
//   - After a Retry-After nothing is sent to that host before: RestsUntil says until when. A short one is waited for.
//
// Not its job: tries, which the node makes by the codes of the errors; the budget of a host over all nodes.
//
// Concurrency: a Client is for a whole node, and safe for concurrent use.
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
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tranchehq/tranche/endpoints/wire"
	"github.com/tranchehq/tranche/gather"
	"github.com/tranchehq/tranche/gather/fetch"
	"github.com/tranchehq/tranche/gather/template"
	"github.com/tranchehq/tranche/internal/connections"
)

// Defaults of Config.
const (
	DefaultConnectTimeout = 5 * time.Second
	DefaultUserAgent      = "tranche"
)

// maxSteps is how many steps are kept parsed.
const maxSteps = 256

// Config sets a Client up. A zero field means its default.
type Config struct {
	UserAgent      string
	ConnectTimeout time.Duration // for a connection, with the lookup of its name; as much again for TLS
	Resolver       *net.Resolver // nil: the system's
}

// Client asks HTTP services.
type Client struct {
	conns      *connections.Connections
	cfg        Config
	transports *transports
	rests      rests

	mu     sync.Mutex
	steps  map[string]*step // by their settings
	shares map[shareKey]*share
}

// New returns a client with an operator's connections; nil: none.
func New(conns *connections.Connections, cfg Config) (*Client, error) {
	if conns == nil {
		conns = &connections.Connections{}
	}
	cfg.UserAgent = cmp.Or(cfg.UserAgent, DefaultUserAgent)
	cfg.ConnectTimeout = cmp.Or(cfg.ConnectTimeout, DefaultConnectTimeout)
	if cfg.ConnectTimeout < 0 || !gather.HeaderText(cfg.UserAgent) {
		return nil, fmt.Errorf("httpfetch: Config.ConnectTimeout %s or UserAgent %q is out of range", cfg.ConnectTimeout,
			cfg.UserAgent)
	}
	c := &Client{conns: conns, cfg: cfg, steps: map[string]*step{}, shares: map[shareKey]*share{}}
	c.transports = newTransports(c)
	return c, nil
}

// Close lets go of connections that are not in use.
func (c *Client) Close() { c.transports.close() }

// RestsUntil returns until when a host wants to be left alone, by what paces its steps, as in http:127.0.0.1:8081. The
// zero time, or one that is over: it does not.
func (c *Client) RestsUntil(paceKey string) time.Time { return c.rests.until(paceKey) }

// Fetcher returns what does a step of these settings, the JSON of gather.HTTP. The error is an *wire.SlotError
// that speaks for all items: settings that this version does not know, or secrets that this node does not have.
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
		clear(c.steps) // those in use come back
	}
	c.steps[string(config)] = s
	return s, nil
}

// parse reads a step's settings.
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

// checkSecrets looks whether this node has the secrets of the step, and may send them.
func (s *step) checkSecrets() error {
	for _, name := range s.templates.Secrets() {
		if _, err := s.secretValue(name); err != nil {
			return wire.Fail(CodeNoSecret, "%s", s.client.conns.Redact(err.Error()))
		}
	}
	return nil
}

// Transport returns what sends requests that are no step's by the same rules: to public addresses, and to those of this
// machine and of private networks that the operator's file allows, looked at when the connection is made. It follows no
// redirects and carries no secrets by itself; who reads the response bounds it.
func (c *Client) Transport() http.RoundTripper { return c.transports }

// Explain says why there was no response to a request by Transport, in words of our own: the error itself has the URL
// in it. passes reports whether it may be otherwise the next time.
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

// CheckURL says why nothing is asked for at a URL, as far as that shows without looking up its name.
func (c *Client) CheckURL(u *url.URL) error { return c.transports.checkLiteral(u) }

const (
	// A connection without work is closed.
	idleConnection = time.Minute
	maxHeaderBytes = 64 << 10
)

// transports keep connections: one pool for hosts about which there is nothing particular, and one for each other, so
// that a client's certificate is shown to no one else.
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

// RoundTrip sends a request by the connections of its host.
func (t *transports) RoundTrip(r *http.Request) (*http.Response, error) {
	if t.client.conns.HTTP.Proxy != nil {
		if err := t.checkLiteral(r.URL); err != nil { // a proxy makes the connection, so that guard sees its address only
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
	at, err := netip.ParseAddr(u.Hostname())
	if err != nil {
		return nil //nolint:nilerr // a name, which the proxy looks up
	}
	port, err := strconv.ParseUint(portOf(u), 10, 16)
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

// redirectError is a redirect that is not followed. Where it leads is not said: a service could put anything there.
type redirectError struct{ why string }

func (e *redirectError) Error() string { return "the service sends elsewhere, and " + e.why }

// checkRedirect is asked before a redirect is followed. What the plan says in headers goes to the host that the plan
// names; once a redirect has left that, nothing goes along even if the next one comes back.
func (s *step) checkRedirect(r *http.Request, via []*http.Request) error {
	if s.Redirects == 0 {
		return http.ErrUseLastResponse
	}
	if len(via) > s.Redirects {
		return &redirectError{"that too often; redirects says how often it may"}
	}
	r.Header.Del("Referer") // it has the item's key in it
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

// sameHost reports whether two URLs have one origin.
func sameHost(a, b *url.URL) bool {
	return a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) && portOf(a) == portOf(b)
}

func portOf(u *url.URL) string {
	if port := u.Port(); port != "" || u.Scheme == "" {
		return port
	}
	return map[string]string{"http": "80", "https": "443"}[u.Scheme]
}

// refusedRedirect returns the redirect that was not followed, or nil.
func refusedRedirect(err error) *redirectError {
	refused, _ := errors.AsType[*redirectError](err)
	return refused
}

// addressError says that an address is not to be reached. It does not say which: who writes plans may learn that a name
// is not to be asked, and not what it stands for in the operator's network.
type addressError struct{}

func (*addressError) Error() string {
	return "it has an address of this machine or of a private network; the operator's http.allow_private says which of " +
		"those may be reached"
}

// special are ranges that netip does not know of, which no public service has. Some of them contain an address of the
// fourth version, by which a private one could be reached.
var special = []netip.Prefix{ //nolint:gochecknoglobals // never changed
	netip.MustParsePrefix("0.0.0.0/8"),       // this network
	netip.MustParsePrefix("100.64.0.0/10"),   // between a carrier and its customers
	netip.MustParsePrefix("192.0.0.0/24"),    // protocols
	netip.MustParsePrefix("192.0.2.0/24"),    // documentation
	netip.MustParsePrefix("192.88.99.0/24"),  // relays
	netip.MustParsePrefix("198.18.0.0/15"),   // benchmarks
	netip.MustParsePrefix("198.51.100.0/24"), // documentation
	netip.MustParsePrefix("203.0.113.0/24"),  // documentation
	netip.MustParsePrefix("240.0.0.0/4"),     // reserved, and broadcast
	netip.MustParsePrefix("::/96"),           // contains one of the fourth version
	netip.MustParsePrefix("::ffff:0:0:0/96"), // also
	netip.MustParsePrefix("64:ff9b::/96"),    // also
	netip.MustParsePrefix("64:ff9b:1::/48"),  // also
	netip.MustParsePrefix("100::/64"),        // discard
	netip.MustParsePrefix("2001::/23"),       // protocols, and Teredo, which contains one
	netip.MustParsePrefix("2001:db8::/32"),   // documentation
	netip.MustParsePrefix("2002::/16"),       // contains one of the fourth version
	netip.MustParsePrefix("3fff::/20"),       // documentation
	netip.MustParsePrefix("5f00::/16"),       // segment routing
	netip.MustParsePrefix("fec0::/10"),       // private, once
}

// public reports whether an address is one of the public internet.
func public(address netip.Addr) bool {
	address = address.Unmap().WithZone("")
	return address.IsGlobalUnicast() && !address.IsPrivate() &&
		!slices.ContainsFunc(special, func(p netip.Prefix) bool { return p.Contains(address) })
}

// checkAddress returns an *addressError for an address that must not be reached.
func checkAddress(at netip.AddrPort, allowed []connections.Network) error {
	if public(at.Addr()) || slices.ContainsFunc(allowed, func(n connections.Network) bool { return n.Contains(at) }) {
		return nil
	}
	return &addressError{}
}

// guard is called for each address that is about to be connected to, after its name was looked up.
func (c *Client) guard(_ context.Context, network, address string, _ syscall.RawConn) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil || network != "tcp4" && network != "tcp6" {
		return fmt.Errorf("connect: %s is no address", network)
	}
	return checkAddress(at, c.conns.HTTP.AllowPrivate)
}

func (c *Client) dialer() *net.Dialer {
	return &net.Dialer{Timeout: c.cfg.ConnectTimeout, Resolver: c.cfg.Resolver, ControlContext: c.guard}
}
