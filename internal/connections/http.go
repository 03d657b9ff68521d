package connections

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tranchehq/tranche/gather/strictyaml"
)

// What HTTP allows unless the file says otherwise.
const (
	DefaultMaxResponse        = 16 << 20
	DefaultMaxHostConnections = 64

	maxMaxResponse = 256 << 20
)

// HTTP says how services are spoken to. The zero value reaches public addresses only.
type HTTP struct {
	AllowPrivate   []Network
	Proxy          *url.URL // nil: none, whatever the environment says
	MaxResponse    int      // bytes of a response, whatever a plan says; 0: DefaultMaxResponse
	MaxConnections int      // to a host, from this node; 0: DefaultMaxHostConnections
	Hosts          map[string]*Host
}

// Host is what is particular about a host.
type Host struct {
	MaxConnections int // 0: that of all
	RootCAs        *x509.CertPool
	Certificates   []tls.Certificate // of the client
}

// Network is a range of addresses, on one port or on all.
type Network struct {
	Prefix netip.Prefix
	Port   uint16 // 0: all
}

// Contains reports whether an address is in the network.
func (n Network) Contains(at netip.AddrPort) bool {
	return n.Prefix.Contains(at.Addr().Unmap().WithZone("")) && (n.Port == 0 || n.Port == at.Port())
}

// Host returns what is particular about the host of a URL, or nil.
func (h *HTTP) Host(u *url.URL) *Host {
	if host := h.Hosts[HostPort(u)]; host != nil {
		return host
	}
	return h.Hosts[targetOf(u).host]
}

func (r *reader) readHTTP(v strictyaml.Value, h *HTTP) error {
	return v.Fields([]strictyaml.Field{
		{Name: "allow_private", Read: func(v strictyaml.Value) error {
			return v.List(func(v strictyaml.Value) error { return network(v, &h.AllowPrivate) })
		}},
		{Name: "proxy", Read: func(v strictyaml.Value) error { return proxy(v, h) }},
		{Name: "max_response", Read: size(&h.MaxResponse, 1<<10, maxMaxResponse)},
		{Name: "max_connections", Read: strictyaml.Number(&h.MaxConnections, 1, 10_000)},
		{Name: "hosts", Read: func(v strictyaml.Value) error {
			h.Hosts = map[string]*Host{}
			const want = "hosts, like api.bank.example or api.bank.example:8443"
			return v.Entries(want, func(name string, v strictyaml.Value) error {
				targets, ok := parseTargets(name)
				if !ok {
					return v.Fail("want a host like api.bank.example, with a port if need be")
				}
				host, err := r.readHost(v)
				if u := (&url.URL{Scheme: "https", Host: name}); u.Port() == "" {
					name = targets[0].host
				} else {
					name = HostPort(u)
				}
				h.Hosts[name] = host
				return err
			})
		}},
	}...)
}

func network(v strictyaml.Value, into *[]Network) error {
	var text string
	if err := strictyaml.Text(&text)(v); err != nil {
		return err
	}
	n, ok := parseNetwork(text)
	if !ok {
		return v.Fail("want an address like 127.0.0.1, one with a port like 127.0.0.1:8081, or a range like 10.0.0.0/8")
	}
	*into = append(*into, n)
	return nil
}

func parseNetwork(text string) (Network, bool) {
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return Network{Prefix: prefix.Masked()}, true
	}
	address, err := netip.ParseAddr(text)
	port := uint16(0)
	if err != nil {
		with, err := netip.ParseAddrPort(text)
		if err != nil || with.Port() == 0 {
			return Network{}, false
		}
		address, port = with.Addr(), with.Port()
	}
	address = address.Unmap().WithZone("")
	return Network{netip.PrefixFrom(address, address.BitLen()), port}, true
}

func proxy(v strictyaml.Value, h *HTTP) error {
	var text string
	if err := strictyaml.Text(&text)(v); err != nil {
		return err
	}
	u, err := url.Parse(text)
	if err != nil || u.Host == "" || u.User != nil || u.Scheme != "http" && u.Scheme != "https" {
		return v.Fail("want a URL like http://proxy.bank.example:3128, without a password")
	}
	h.Proxy = u
	return nil
}

func (r *reader) readHost(v strictyaml.Value) (*Host, error) {
	h := &Host{}
	var ca, cert, key string
	err := v.Fields([]strictyaml.Field{
		{Name: "ca", Read: strictyaml.Text(&ca)},
		{Name: "cert", Read: strictyaml.Text(&cert)},
		{Name: "key", Read: strictyaml.Text(&key)},
		{Name: "max_connections", Read: strictyaml.Number(&h.MaxConnections, 1, 10_000)},
	}...)
	if err != nil {
		return nil, err
	}
	if (cert == "") != (key == "") {
		return nil, v.Fail("cert and key go together")
	}
	if ca != "" {
		if h.RootCAs, err = r.authorities(v, ca); err != nil {
			return nil, err
		}
	}
	if cert != "" {
		pair, err := tls.LoadX509KeyPair(r.beside(cert), r.beside(key))
		if err != nil {
			return nil, v.Fail("cert and key: %v", err)
		}
		h.Certificates = []tls.Certificate{pair}
	}
	return h, nil
}

// authorities reads a file of certificates.
func (r *reader) authorities(v strictyaml.Value, file string) (*x509.CertPool, error) {
	pem, err := os.ReadFile(r.beside(file))
	if err != nil {
		return nil, v.Fail("ca: %v", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, v.Fail("ca: there is no certificate in %s", strconv.Quote(r.beside(file)))
	}
	return pool, nil
}

const (
	// maxSecret bounds secrets, so that what quotes a stranger's answer can look for them in a bounded piece of it.
	maxSecret = 4 << 10
	// rereadAfter is how old a secret that was read from a file may be.
	rereadAfter = 10 * time.Second
)

// origin is where a text stands that the file does not contain: in the environment or in a file.
type origin struct {
	env, file string

	mu    sync.Mutex
	text  string
	old   []string // what it was before, for redaction
	since time.Time
}

// fields are the fields by which an origin is given.
func (o *origin) fields(r *reader) []strictyaml.Field {
	return []strictyaml.Field{
		{Name: "env", Read: strictyaml.Text(&o.env)},
		{Name: "file", Read: func(v strictyaml.Value) error {
			err := strictyaml.Text(&o.file)(v)
			o.file = r.beside(o.file)
			return err
		}},
	}
}

// elsewhere reads a value that says where the text stands.
func (o *origin) elsewhere(r *reader, v strictyaml.Value) error {
	if _, itself := v.Text(); itself {
		return v.Fail("the text itself does not belong here; say where it stands, like {env: VARIABLE} or {file: FILE}")
	}
	return v.Fields(o.fields(r)...)
}

// check reads the text for the first time.
func (o *origin) check(v strictyaml.Value) error {
	if (o.env == "") == (o.file == "") {
		return v.Fail("say where it stands: either env: VARIABLE or file: FILE")
	}
	if _, err := o.read(); err != nil {
		return v.Fail("%v", err)
	}
	return nil
}

// beside makes a path that is not absolute one beside the file.
func (r *reader) beside(path string) string {
	if path == "" || filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(r.directory, path)
}

// read returns the text. One from a file is read again from time to time; while that fails the one before is good.
func (o *origin) read() (string, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.text != "" && (o.file == "" || time.Since(o.since) < rereadAfter) {
		return o.text, nil
	}
	text, err := o.fetch()
	switch {
	case err != nil && o.text == "":
		return "", err
	case err == nil && text != o.text:
		if o.text != "" {
			o.old = append(o.old, o.text)
		}
		o.text = text
	}
	o.since = time.Now()
	return o.text, nil
}

// all returns every text that it has been.
func (o *origin) all() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append(slices.Clip(o.old), o.text)
}

func (o *origin) fetch() (string, error) {
	if o.env != "" {
		text, set := os.LookupEnv(o.env)
		if !set || text == "" {
			return "", fmt.Errorf("the environment has no %s, or it is empty", o.env)
		}
		return text, checkText(text, "$"+o.env)
	}
	file, err := os.Open(o.file)
	if err != nil {
		return "", err
	}
	defer func() { _ = file.Close() }() // it was read
	raw, err := io.ReadAll(io.LimitReader(file, maxSecret+2))
	if err != nil {
		return "", fmt.Errorf("read %s: %w", o.file, err)
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(raw), "\n"), "\r")
	if text == "" {
		return "", fmt.Errorf("%s is empty", o.file)
	}
	return text, checkText(text, o.file)
}

var errControl = errors.New("a control character stands in it; it is to be one line of text")

// checkText refuses what could be no secret, or would break out of a header.
func checkText(text, where string) error {
	if len(text) > maxSecret {
		return fmt.Errorf("%s has more than %d bytes", where, maxSecret)
	}
	if strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c == 0x7f }) {
		return fmt.Errorf("%s: %w", where, errControl)
	}
	return nil
}
