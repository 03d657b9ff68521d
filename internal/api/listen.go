package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"syscall"

	"go.uber.org/zap"
)

// DefaultListen is where the API is found unless told otherwise.
const DefaultListen = "127.0.0.1:8480"

// Exposure says what keeps strangers away from an address.
type Exposure struct {
	Auth            bool   // who asks has to say who they are
	TLSCert, TLSKey string // files in PEM; both or none
	BehindProxy     bool   // a proxy in front ends TLS
	Log             *zap.Logger
}

// Encrypted reports whether what browsers send is encrypted, as far as this server knows.
func (e *Exposure) Encrypted() bool { return e.TLSCert != "" || e.BehindProxy }

// Listen opens an address, like "127.0.0.1:8480". One that is not a loopback address needs logins and encryption:
// without them everybody on the network could start and cancel runs, or read the tokens of those who may.
func Listen(ctx context.Context, address string, guarded Exposure) (net.Listener, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("--listen %q is not host:port, like %s", address, DefaultListen)
	}
	if err := guarded.suits(address, isLoopback(host)); err != nil {
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
	if at, ok := listener.Addr().(*net.TCPAddr); ok { // localhost is what a file of the machine says
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

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// suits refuses an address that strangers can reach when too little keeps them away.
func (e *Exposure) suits(address string, loopback bool) error {
	switch {
	case (e.TLSCert == "") != (e.TLSKey == ""):
		return errors.New("--tls-cert and --tls-key go together: a certificate, and its key")
	case loopback:
		return nil
	case !e.Auth:
		return fmt.Errorf("--listen %s is not a loopback address, and without --auth on everybody who can reach it could "+
			"start and cancel runs; add --auth on, or listen on %s and reach it through a tunnel", address, DefaultListen)
	case !e.Encrypted():
		return fmt.Errorf("--listen %s is not a loopback address, and without TLS everybody on the way could read the "+
			"tokens; add --tls-cert and --tls-key, or --behind-proxy when a proxy of yours ends TLS in front of it, or "+
			"listen on %s", address, DefaultListen)
	default:
		return nil
	}
}
