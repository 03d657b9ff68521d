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
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

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
	ca, other := testenv.Must(tls.LoadX509KeyPair(caFile, caKey))(t), testenv.Must(tls.LoadX509KeyPair(otherFile,
		otherKey))(t)
	issue := func(by *tls.Certificate, about *x509.Certificate) *tls.Certificate {
		pair := testenv.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
		der := testenv.Must(x509.CreateCertificate(rand.Reader, about, by.Leaf, pair.Public(), by.PrivateKey))(t)
		return &tls.Certificate{Certificate: append([][]byte{der}, by.Certificate...), PrivateKey: pair,
			Leaf: testenv.Must(x509.ParseCertificate(der))(t)}
	}
	between := issue(&ca, &x509.Certificate{SerialNumber: big.NewInt(5), Subject: pkix.Name{CommonName: "between"},
		NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true})
	authorities := filepath.Join(dir, "authorities.pem")
	testenv.NoError(t, os.WriteFile(authorities, append(testenv.Must(os.ReadFile(caFile))(t), pem.EncodeToMemory(
		&pem.Block{Type: "CERTIFICATE", Bytes: between.Certificate[0]})...), 0o600))
	revoke := func(at time.Time, serials ...int64) {
		var lists []byte
		for i, by := range []*tls.Certificate{between, &ca, &ca} { // the second of ca has more
			list := &x509.RevocationList{Number: big.NewInt(1), ThisUpdate: time.Now(), NextUpdate: time.Now().Add(time.Hour)}
			for _, n := range serials[:len(serials)*(i/2)] {
				list.RevokedCertificateEntries = append(list.RevokedCertificateEntries,
					x509.RevocationListEntry{SerialNumber: big.NewInt(n), RevocationTime: time.Now()})
			}
			issuer := *by.Leaf
			issuer.KeyUsage, issuer.SubjectKeyId = x509.KeyUsageCRLSign, []byte{1}
			der := testenv.Must(x509.CreateRevocationList(rand.Reader, list, &issuer, by.PrivateKey.(*ecdsa.PrivateKey)))(t)
			lists = append(lists, pem.EncodeToMemory(&pem.Block{Type: "X509 CRL", Bytes: der})...)
		}
		testenv.NoError(t, os.WriteFile(crl, lists, 0o600))
		testenv.NoError(t, os.Chtimes(crl, at, at))
	}
	revoke(time.Now(), 99)
	long := strings.Repeat("\U0001f3e6", 497) // with CN= and ,O=Bank 507 characters, each of four bytes
	seen, log := observer.New(zap.WarnLevel)
	clients, err := access.NewCertificates(access.CertificatesConfig{CAFile: authorities, CRLFile: crl, Log: zap.New(seen),
		Roles: map[string]access.Role{"CN=billing,O=Bank": access.Operator, "CN=between's": access.Operator,
			"CN=" + long + ",O=Bank": access.Operator}})
	testenv.NoError(t, err)
	_, err = access.NewCertificates(access.CertificatesConfig{CAFile: authorities,
		Roles: map[string]access.Role{"CN=x" + long + ",O=Bank": access.Viewer}})
	testenv.Says(t, err, "it has more than 507 characters", "a long subject")
	gate := testenv.Must(access.New(identity.New(b.Store), access.Config{}))(t)
	server := testenv.Must(api.New(b.Store, apitest.NodeOf(b.Engine), testenv.Conn(t, testenv.NATS(t)),
		api.Config{Access: gate, Certificates: clients, SecureCookies: true,
			TrustedProxies: []netip.Prefix{netip.MustParsePrefix("127.0.0.2/32")}}))(t)
	listener := testenv.Must(api.Listen(t.Context(), "127.0.0.1:0",
		api.Exposure{Auth: true, TLSCert: caFile, TLSKey: caKey, ClientCA: clients.Pool}))(t)
	testenv.Keep(t, t.Errorf, "the server", func(ctx context.Context) error {
		return server.Serve(ctx, listener, time.Minute)
	})

	from := func(address string, own *tls.Certificate) *http.Client {
		roots := x509.NewCertPool()
		roots.AddCert(ca.Leaf)
		transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots,
			GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return own, nil }},
			DialContext: (&net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}).DialContext}
		t.Cleanup(transport.CloseIdleConnections)
		return &http.Client{Transport: transport}
	}
	client := func(by *tls.Certificate, serial int64, life time.Duration, name string,
		also ...pkix.AttributeTypeAndValue) *http.Client {
		return from("127.0.0.1", issue(by, &x509.Certificate{SerialNumber: big.NewInt(serial), NotAfter: time.Now().Add(life),
			Subject: pkix.Name{CommonName: name, Organization: []string{"Bank"}, ExtraNames: also}}))
	}
	ask := func(c *http.Client, method, path string, header ...string) string {
		r := testenv.Must(http.NewRequestWithContext(t.Context(), method, "https://"+listener.Addr().String()+api.Prefix+path,
			strings.NewReader(`{"rate":5}`)))(t)
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
	below := issue(between, &x509.Certificate{SerialNumber: big.NewInt(9), NotAfter: time.Now().Add(time.Hour),
		Subject: pkix.Name{CommonName: "between's"}})
	twice := pkix.AttributeTypeAndValue{Type: []int{2, 5, 4, 3}, Value: "billing"}
	domain := pkix.AttributeTypeAndValue{Type: []int{0, 9, 2342, 19200300, 100, 1, 25}, Value: "a,b"}
	token := []string{"Authorization", "Bearer " + b.Token("vic", access.Viewer, 0).Secret}
	cookie := []string{"Cookie", "__Host-tranche_session=" + strings.Repeat("a", 52)}
	change := "/endpoints/echo/settings"
	for what, c := range map[string]struct {
		client       *http.Client
		method, path string
		header       []string
		want         string
	}{
		"its session":       {billing, "GET", "/session", nil, `"user":"cert:CN=billing,O=Bank","role":"operator"`},
		"its role":          {billing, "POST", change, nil, "200 "},
		"no more":           {billing, "GET", "/tokens", nil, "403 "},
		"a token is first":  {billing, "POST", change, token, "vic has the role viewer"},
		"a session is, too": {billing, "POST", change, cookie, "401 "},
		"another site":      {billing, "POST", change, []string{"Sec-Fetch-Site", "cross-site"}, "403 "},
		"without a role":    {eve, "GET", "/runs", nil, `the certificate of \"CN=eve,O=Bank\" has no role here`},
		"expired":           {client(&ca, 9, -time.Minute, "billing"), "GET", "/runs", nil, "tls: expired certificate"},
		"another authority": {client(&other, 7, time.Hour, "billing"), "GET", "/runs", nil,
			"tls: unknown certificate authority"},
		"an authority between": {from("127.0.0.1", below), "GET", "/session", nil, `"role":"operator"`},
		"a proxy's own": {from("127.0.0.2", below), "GET", "/runs", []string{"X-Forwarded-For", "192.0.2.1"},
			"needs a login"},
		"a long subject": {client(&ca, 12, time.Hour, long), "POST", change, []string{"Idempotency-Key",
			strings.Repeat("k", 64)}, "200 "},
		"a longer one":    {client(&ca, 13, time.Hour, "x"+long), "GET", "/runs", nil, "more than 507 characters"},
		"two names":       {client(&ca, 10, time.Hour, "eve", twice, twice), "GET", "/runs", nil, "more than one CN"},
		"a readable name": {client(&ca, 11, time.Hour, "x", domain), "GET", "/runs", nil, `DC=a\\\\,b,CN=x,O=Bank`},
	} {
		if got := ask(c.client, c.method, c.path, c.header...); !strings.Contains(got, c.want) {
			t.Errorf("%s: %s; want %s", what, got, c.want)
		}
	}
	testenv.Same(t, b.Number(`SELECT sum(CASE WHEN origin->>'certificate' = '7 CN=a test' AND
		actor = 'cert:CN=billing,O=Bank' OR actor = $1 THEN 1 ELSE 9 END) FROM audit_log WHERE action = 'endpoint_set'`,
		"cert:CN="+long+",O=Bank"), 2, "changes")
	testenv.NoError(t, os.WriteFile(crl, []byte("half a list"), 0o600))
	testenv.NoError(t, os.Chtimes(crl, time.Now(), time.Now().Add(time.Second)))
	testenv.Until(t, time.Minute, "a list that cannot be read is logged", func() bool {
		return strings.HasPrefix(ask(billing, "GET", "/runs"), "200 ") && log.Len() == 1
	})
	revoke(time.Now().Add(2*time.Second), 5, 7)
	for name, c := range map[string]*http.Client{"CN=billing,O=Bank": billing, "CN=between's": from("127.0.0.1", below)} {
		testenv.Until(t, time.Minute, "a revoked certificate is refused", func() bool {
			got := ask(c, "GET", "/runs")
			return strings.HasPrefix(got, "401 ") && strings.Contains(got, `the certificate of \"`+name+`\" is revoked`)
		})
	}
	testenv.Same(t, log.Len(), 1, "warnings")
}
