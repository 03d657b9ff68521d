package httpfetch

import (
	"cmp"
	"crypto/tls"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/tranchehq/tranche/internal/connections"
)

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
