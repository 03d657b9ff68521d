package api_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net/http"
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

// PROOF: who may do what, 24.
// A client certificate is who its subject says, if no token or session is sent: with a role by its subject alone, until
// it expires or is revoked, on open connections too.
func TestClientCertificates(t *testing.T) {
	t.Parallel()
	b, dir := apitest.Setup(t), t.TempDir()
	caFile, caKey := api.NewCertificate(t, dir, 1)
	otherFile, otherKey := api.NewCertificate(t, t.TempDir(), 2)
	crl := filepath.Join(dir, "crl.pem")
	ca, other := testenv.Must(tls.LoadX509KeyPair(caFile, caKey))(t), testenv.Must(tls.LoadX509KeyPair(otherFile, otherKey))(t)
	revoke := func(at time.Time, serials ...int64) {
		list := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now(), NextUpdate: time.Now().Add(time.Hour)}
		for _, n := range serials {
			list.RevokedCertificateEntries = append(list.RevokedCertificateEntries,
				x509.RevocationListEntry{SerialNumber: big.NewInt(n), RevocationTime: time.Now()})
		}
		issuer := *ca.Leaf
		issuer.KeyUsage, issuer.SubjectKeyId = x509.KeyUsageCRLSign, []byte{1}
		der := testenv.Must(x509.CreateRevocationList(rand.Reader, list, &issuer, ca.PrivateKey.(*ecdsa.PrivateKey)))(t)
		testenv.NoError(t, os.WriteFile(crl, pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der}), 0o600))
		testenv.NoError(t, os.Chtimes(crl, at, at))
	}
	revoke(time.Now(), 99)
	clients, err := access.NewCertificates(access.CertificatesConfig{CAFile: caFile, CRLFile: crl,
		Roles: map[string]access.Role{"CN=billing,O=Bank": access.Operator}})
	testenv.NoError(t, err)
	gate := testenv.Must(access.New(identity.New(b.Store), access.Config{}))(t)
	server := testenv.Must(api.New(b.Store, apitest.NodeOf(b.Engine), testenv.Conn(t, testenv.NATS(t)),
		api.Config{Access: gate, Certificates: clients, SecureCookies: true}))(t)
	listener := testenv.Must(api.Listen(t.Context(), "127.0.0.1:0", api.Exposure{Auth: true, TLSCert: caFile, TLSKey: caKey,
		ClientCA: clients.Pool}))(t)
	ctx, stop := context.WithCancel(t.Context())
	stopped := make(chan error, 1)
	go func() { stopped <- server.Serve(ctx, listener, time.Minute) }()
	t.Cleanup(func() { stop(); testenv.NoError(t, <-stopped) })

	client := func(by *tls.Certificate, serial int64, life time.Duration, name string) *http.Client {
		pair := testenv.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
		about := &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(life),
			Subject: pkix.Name{CommonName: name, Organization: []string{"Bank"}}}
		der := testenv.Must(x509.CreateCertificate(rand.Reader, about, by.Leaf, pair.Public(), by.PrivateKey))(t)
		own := tls.Certificate{Certificate: [][]byte{der}, PrivateKey: pair}
		roots := x509.NewCertPool()
		roots.AddCert(ca.Leaf)
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &own, nil }}}
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport}
	}
	ask := func(c *http.Client, method, path string, header ...string) string {
		r := testenv.Must(http.NewRequestWithContext(t.Context(), method, "https://"+listener.Addr().String()+api.Prefix+path,
			strings.NewReader(`{"all":true}`)))(t)
		r.Header.Set("Content-Type", "application/json")
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		answer, err := c.Do(r)
		if err != nil {
			return err.Error()
		}
		defer func() { _ = answer.Body.Close() }()
		return answer.Status + " " + string(testenv.Must(io.ReadAll(answer.Body))(t))
	}
	billing, eve := client(&ca, 7, time.Hour, "billing"), client(&ca, 8, time.Hour, "eve")
	token := []string{"Authorization", "Bearer " + b.Token("vic", access.Viewer, 0).Secret}
	cookie := []string{"Cookie", "__Host-tranche_session=" + strings.Repeat("a", 52)}
	pause := "/runs/pause"
	for what, c := range map[string]struct {
		client       *http.Client
		method, path string
		header       []string
		want         string
	}{
		"its session":       {billing, "GET", "/session", nil, `"user":"cert:CN=billing,O=Bank","role":"operator"`},
		"its role":          {billing, "POST", pause, nil, "200 "},
		"no more":           {billing, "GET", "/tokens", nil, "403 "},
		"a token is first":  {billing, "POST", pause, token, "vic has the role viewer"},
		"a session is, too": {billing, "POST", pause, cookie, "401 "},
		"another site":      {billing, "POST", pause, []string{"Sec-Fetch-Site", "cross-site"}, "403 "},
		"without a role":    {eve, "GET", "/runs", nil, `the certificate of \"CN=eve,O=Bank\" has no role here`},
		"expired":           {client(&ca, 9, -time.Minute, "billing"), "GET", "/runs", nil, "tls: "},
		"another authority": {client(&other, 7, time.Hour, "billing"), "GET", "/runs", nil, "tls: "},
	} {
		if got := ask(c.client, c.method, c.path, c.header...); !strings.Contains(got, c.want) {
			t.Errorf("%s: %s; want %s", what, got, c.want)
		}
	}
	testenv.Same(t, b.Number(`SELECT count(*) FROM audit_log WHERE action = 'pause' AND actor <> 'cert:CN=billing,O=Bank'`), 0,
		"changes by others")
	revoke(time.Now().Add(time.Second), 7)
	testenv.Until(t, time.Minute, "a revoked certificate is refused", func() bool {
		got := ask(billing, "GET", "/runs")
		return strings.HasPrefix(got, "401 ") && strings.Contains(got, `the certificate of \"CN=billing,O=Bank\" is revoked`)
	})
}
