package connections

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net/netip"
	"net/url"
	"os"
	"strconv"

	"github.com/tranchehq/tranche/workqueue"
)

// Defaults of HTTP.
const (
	DefaultMaxResponse        = 16 << 20
	DefaultMaxHostConnections = 64
)

// HTTP configures HTTP requests. The zero value permits public addresses only.
type HTTP struct {
	AllowPrivate []Network `json:"allow_private"`
	ProxyURL     string    `json:"proxy"`
	// MaxResponse limits the bytes read of a response, also if a plan sets more; 0: DefaultMaxResponse.
	MaxResponse workqueue.Bytes `json:"max_response" min:"1KiB" max:"256MiB"`
	// MaxConnections limits this node's connections to a host; 0: DefaultMaxHostConnections.
	MaxConnections int              `json:"max_connections" min:"1" max:"10000"`
	Hosts          map[string]*Host `json:"hosts" want:"hosts, like api.bank.example or api.bank.example:8443"`

	Proxy *url.URL // nil: none; the environment is ignored
}

// Host is the settings of a host.
type Host struct {
	CA             string `json:"ca"`
	Cert           string `json:"cert"`
	Key            string `json:"key"`
	MaxConnections int    `json:"max_connections" min:"1" max:"10000" doc:"of this node to the host; default: that of http"`

	RootCAs      *x509.CertPool
	Certificates []tls.Certificate // of the client
}

// Network is a range of addresses, on one port or all.
type Network struct {
	Prefix netip.Prefix
	Port   uint16 // 0: all
}

// Contains reports whether an address is in the network.
func (n Network) Contains(at netip.AddrPort) bool {
	return n.Prefix.Contains(at.Addr().Unmap().WithZone("")) && (n.Port == 0 || n.Port == at.Port())
}

// Host returns the settings of a URL's host, or nil.
func (h *HTTP) Host(u *url.URL) *Host {
	if host := h.Hosts[HostPort(u)]; host != nil {
		return host
	}
	return h.Hosts[targetOf(u).host]
}

var errNoNetwork = errors.New("want an address like 127.0.0.1, one with a port like 127.0.0.1:8081, or a range like " +
	"10.0.0.0/8")

// UnmarshalText implements encoding.TextUnmarshaler.
func (n *Network) UnmarshalText(text []byte) error {
	if prefix, err := netip.ParsePrefix(string(text)); err == nil {
		*n = Network{Prefix: prefix.Masked()}
		return nil
	}
	address, err := netip.ParseAddr(string(text))
	port := uint16(0)
	if err != nil {
		with, err := netip.ParseAddrPort(string(text))
		if err != nil || with.Port() == 0 {
			return errNoNetwork
		}
		address, port = with.Addr(), with.Port()
	}
	address = address.Unmap().WithZone("")
	*n = Network{netip.PrefixFrom(address, address.BitLen()), port}
	return nil
}

func (r *reader) http(h *HTTP) error {
	if h.ProxyURL != "" {
		u, err := url.Parse(h.ProxyURL)
		if err != nil || u.Host == "" || u.User != nil || u.Scheme != "http" && u.Scheme != "https" {
			return r.Fail("http.proxy", "want a URL like http://proxy.bank.example:3128, without a password")
		}
		h.Proxy = u
	}
	hosts := map[string]*Host{}
	for _, name := range sorted(h.Hosts) {
		host := h.Hosts[name]
		at := "http.hosts." + name
		var found targets
		if found.UnmarshalText([]byte(name)) != nil {
			return r.Fail(at, "want a host like api.bank.example, with a port if need be")
		}
		if err := r.host(at, host); err != nil {
			return err
		}
		if u := (&url.URL{Scheme: "https", Host: name}); u.Port() == "" {
			name = found[0].host
		} else {
			name = HostPort(u)
		}
		hosts[name] = host
	}
	h.Hosts = hosts
	return nil
}

func (r *reader) host(at string, h *Host) (err error) {
	if (h.Cert == "") != (h.Key == "") {
		return r.Fail(at, "cert and key go together")
	}
	if h.Cert != "" {
		pair, err := tls.LoadX509KeyPair(r.relative(h.Cert), r.relative(h.Key))
		if err != nil {
			return r.Fail(at, "cert and key: %v", err)
		}
		h.Certificates = []tls.Certificate{pair}
	}
	h.RootCAs, err = r.authorities(at, h.CA)
	return err
}

func (r *reader) authorities(at, file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil //nolint:nilnil // the system's are used
	}
	pem, err := os.ReadFile(r.relative(file))
	if err != nil {
		return nil, r.Fail(at, "ca: %v", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, r.Fail(at, "ca: no certificate in %s", strconv.Quote(r.relative(file)))
	}
	return pool, nil
}
