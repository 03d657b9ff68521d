package api

import (
	"cmp"
	"container/list"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// DefaultListen is the default address of the API.
const DefaultListen = "127.0.0.1:8480"

// Exposure says how an address is protected.
type Exposure struct {
	Auth            bool           // callers must authenticate
	TLSCert, TLSKey string         // PEM files; both or none
	TrustedProxies  []netip.Prefix // proxies in front that terminate TLS
	ClientCA        *x509.CertPool // authorities of client certificates; nil: none are requested
	FourEyes        []string       // as in Config
	Log             *zap.Logger
}

// Encrypted reports whether browsers connect by TLS, as far as this server knows.
func (e *Exposure) Encrypted() bool { return e.TLSCert != "" || len(e.TrustedProxies) > 0 }

// Listen opens an address, like "127.0.0.1:8480". A non-loopback address requires logins and encryption: otherwise
// anyone on the network could start and cancel runs, or read tokens.
func Listen(ctx context.Context, address string, guarded Exposure) (net.Listener, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("--listen %q is not host:port, like %s", address, DefaultListen)
	}
	if err := guarded.suits(address, host == "localhost" || net.ParseIP(host).IsLoopback()); err != nil {
		return nil, err
	}
	var secure *tls.Config
	if guarded.TLSCert != "" {
		if secure, err = serverTLS(&guarded); err != nil {
			return nil, err
		}
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("the address %s of the API is taken, perhaps by another tranche serve; "+
			"choose one with --listen (port 0 takes a free one)", address)
	}
	if err != nil {
		return nil, fmt.Errorf("open the API at %s (--listen): %w", address, err)
	}
	if at, ok := listener.Addr().(*net.TCPAddr); ok { // the hosts file of the machine resolves localhost
		if err := guarded.suits(at.String(), at.IP.IsLoopback()); err != nil {
			_ = listener.Close()
			return nil, err
		}
	}
	if secure != nil {
		listener = tls.NewListener(listener, secure)
	}
	return listener, nil
}

func (e *Exposure) suits(address string, loopback bool) error {
	unknown := slices.IndexFunc(e.FourEyes, func(kind string) bool { return !slices.Contains(identity.ActKinds(), kind) })
	switch {
	case unknown >= 0:
		return fmt.Errorf("--four-eyes: unknown kind %q; use some of %s", e.FourEyes[unknown],
			strings.Join(identity.ActKinds(), ", "))
	case len(e.FourEyes) > 0 && !e.Auth:
		return errors.New("--four-eyes needs callers' names; add --auth on")
	case slices.Contains(e.FourEyes, "delete") && !slices.Contains(e.FourEyes, "retention"):
		return errors.New("--four-eyes delete: one administrator could delete runs by retention; use delete,retention")
	case (e.TLSCert == "") != (e.TLSKey == ""):
		return errors.New("--tls-cert and --tls-key go together: a certificate, and its key")
	case loopback:
		return nil
	case !e.Auth:
		return fmt.Errorf("--listen %s is not a loopback address, and without --auth on anyone who can reach it could "+
			"start and cancel runs; add --auth on, or listen on %s and reach it through a tunnel", address, DefaultListen)
	case !e.Encrypted():
		return fmt.Errorf("--listen %s is not a loopback address, and without TLS anyone on the network path could read the "+
			"tokens; add --tls-cert and --tls-key, or --trusted-proxies with the addresses of your proxies that terminate TLS "+
			"in front of it, or listen on %s", address, DefaultListen)
	default:
		return nil
	}
}

// certificateLook is the interval for checking whether the certificate was renewed.
const certificateLook = time.Minute

// serverTLS returns TLS settings with the certificate of the files, which may be renewed without a restart.
func serverTLS(guarded *Exposure) (*tls.Config, error) {
	c := &certificate{certFile: guarded.TLSCert, keyFile: guarded.TLSKey, log: cmp.Or(guarded.Log, zap.NewNop())}
	if err := c.load(); err != nil {
		return nil, err
	}
	config := &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}, GetCertificate: c.current,
	}
	if guarded.ClientCA != nil {
		config.ClientAuth, config.ClientCAs = tls.VerifyClientCertIfGiven, guarded.ClientCA
	}
	return config, nil
}

type certificate struct {
	certFile, keyFile string
	log               *zap.Logger

	mu     sync.Mutex
	loaded *tls.Certificate
	of     time.Time // modification time of the file
	looked time.Time
}

func (c *certificate) load() error {
	info, err := os.Stat(c.certFile)
	if err != nil {
		return fmt.Errorf("--tls-cert: %w", err)
	}
	pair, err := tls.LoadX509KeyPair(c.certFile, c.keyFile)
	if err != nil {
		return fmt.Errorf("--tls-cert and --tls-key: %w", err)
	}
	c.loaded, c.of, c.looked = &pair, info.ModTime(), time.Now()
	return nil
}

// current returns the certificate. If it can no longer be read, the old one stays: better than none.
func (c *certificate) current(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if time.Since(c.looked) < certificateLook {
		return c.loaded, nil
	}
	c.looked = time.Now()
	if info, err := os.Stat(c.certFile); err == nil && info.ModTime().Equal(c.of) {
		return c.loaded, nil
	}
	if err := c.load(); err != nil {
		c.log.Warn("the renewed certificate cannot be used; the one before it stays", zap.Error(err))
	}
	return c.loaded, nil
}

// Limits on idle connections: per address, or per /64 network in IPv6 (up to the total for a trusted proxy), and total.
const (
	maxIdleEach = 128
	maxIdle     = 1024
)

// idleConns closes the longest idle connections when one address has too many, or, if there are too many in total,
// those of the address with the most. Each costs memory and a file descriptor.
type idleConns struct {
	each, all int

	mu     sync.Mutex
	order  *list.List // of idleConn, the latest first
	places map[net.Conn]*list.Element
	count  map[netip.Prefix]int
}

type idleConn struct {
	conn net.Conn
	from netip.Prefix
}

func newIdleConns(each, all int) *idleConns {
	return &idleConns{each: each, all: all, order: list.New(), places: map[net.Conn]*list.Element{},
		count: map[netip.Prefix]int{}}
}

func (i *idleConns) track(conn net.Conn, state http.ConnState) {
	for _, over := range i.note(conn, state == http.StateNew || state == http.StateIdle) {
		if encrypted, ok := over.(*tls.Conn); ok {
			over = encrypted.NetConn() // without the TLS close notify, which a peer could stall
		}
		_ = over.Close() // already unusable
	}
}

func (i *idleConns) note(conn net.Conn, idle bool) (over []net.Conn) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if place := i.places[conn]; place != nil {
		i.remove(place)
	}
	if !idle {
		return nil
	}
	from := networkOf(conn)
	i.places[conn] = i.order.PushFront(idleConn{conn, from})
	i.count[from]++
	switch {
	case i.count[from] > i.each:
		return []net.Conn{i.oldest(from)}
	case i.order.Len() > i.all:
		return []net.Conn{i.oldest(i.most())}
	}
	return nil
}

func (i *idleConns) most() (from netip.Prefix) {
	for each, n := range i.count {
		if n > i.count[from] {
			from = each
		}
	}
	return from
}

func (i *idleConns) oldest(from netip.Prefix) net.Conn {
	for place := i.order.Back(); ; place = place.Prev() {
		if one := place.Value.(idleConn); one.from == from { //nolint:forcetypeassert // nothing else is in it
			i.remove(place)
			return one.conn
		}
	}
}

func (i *idleConns) remove(place *list.Element) {
	one := i.order.Remove(place).(idleConn) //nolint:forcetypeassert // nothing else is in it
	delete(i.places, one.conn)
	if i.count[one.from]--; i.count[one.from] == 0 {
		delete(i.count, one.from)
	}
}

func networkOf(conn net.Conn) netip.Prefix {
	at, err := netip.ParseAddrPort(conn.RemoteAddr().String())
	if err != nil {
		return netip.Prefix{}
	}
	return access.NetworkOf(at.Addr())
}
