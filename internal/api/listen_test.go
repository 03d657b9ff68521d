package api_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// PROOF: who may do what, 1.
// Unauthenticated reach a server only when they have to say who they are, and no one on the way can read it.
func TestListenKeepsStrangersAway(t *testing.T) {
	t.Parallel()
	cert, key := api.NewCertificate(t, t.TempDir(), 1)
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	guarded := map[string]api.Exposure{
		"tls":   {Auth: true, TLSCert: cert, TLSKey: key},
		"proxy": {Auth: true, TrustedProxies: proxies},
	}
	open := map[string]struct {
		with api.Exposure
		says string
	}{
		"nothing":          {api.Exposure{}, "--auth on"},
		"proxy, no login":  {api.Exposure{TrustedProxies: proxies}, "--auth on"},
		"tls, no login":    {api.Exposure{TLSCert: cert, TLSKey: key}, "--auth on"},
		"login, no tls":    {api.Exposure{Auth: true}, "--tls-cert"},
		"a key is missing": {api.Exposure{Auth: true, TLSCert: cert}, "--tls-key"},
	}
	for _, address := range []string{"0.0.0.0:0", ":0", "192.0.2.1:0", "[::]:0", "nonsense", "example.com:80"} {
		for name, c := range open {
			l, err := api.Listen(t.Context(), address, c.with)
			if err == nil {
				t.Errorf("%s was opened with %s", address, name)
				_ = l.Close()
			} else if address != "nonsense" && !strings.Contains(err.Error(), c.says) {
				t.Errorf("%s with %s: %v; want the remedy %s", address, name, err, c.says)
			}
		}
	}
	for _, with := range guarded {
		_ = testenv.Must(api.Listen(t.Context(), "0.0.0.0:0", with))(t).Close()
	}
	first := testenv.Must(api.Listen(t.Context(), "127.0.0.1:0", api.Exposure{}))(t)
	defer func() { _ = first.Close() }()
	_, err := api.Listen(t.Context(), first.Addr().String(), api.Exposure{})
	testenv.Says(t, err, "--listen", "a taken address")
	missing := api.Exposure{TLSCert: filepath.Join(t.TempDir(), "no.pem"), TLSKey: key}
	_, err = api.Listen(t.Context(), "127.0.0.1:0", missing)
	testenv.Says(t, err, "--tls-cert", "a certificate that does not exist")
}

// By TLS, with HTTP/2 and without: uploads, answers that come before their end, exports, streams, and a stop.
func TestServeByTLS(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	gate := testenv.Must(access.New(identity.New(b.Store), access.Config{}))(t)
	config := api.Config{Access: gate, SecureCookies: true}
	server := testenv.Must(api.New(b.Store, apitest.NodeOf(b.Engine), testenv.Conn(t, testenv.NATS(t)), config))(t)
	cert, key := api.NewCertificate(t, t.TempDir(), 1)
	listener, err := api.Listen(t.Context(), "127.0.0.1:0", api.Exposure{Auth: true, TLSCert: cert, TLSKey: key})
	testenv.NoError(t, err)
	stop := testenv.Keep(t, t.Errorf, "the server", func(ctx context.Context) error {
		return server.Serve(ctx, listener, time.Minute)
	})
	text := testenv.Must(os.ReadFile(cert))(t)
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(text)
	secret := b.Token("ann", access.Operator, 0).Secret
	for name, major := range map[string]int{"http/1.1": 1, "h2": 2} {
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}, ForceAttemptHTTP2: major == 2}
		b.UseTLS(transport, "https://"+listener.Addr().String(), name, major, secret)
		transport.CloseIdleConnections()
	}
	stop()
}
