package systest

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"

	"github.com/tranchehq/tranche/internal/embedded"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// natsTLS is each server's own part of the configuration, with what docs/operate/deploy.md adds to it for TLS.
const natsTLS = `server_name: nats-%[6]d
jetstream {}
tls { cert_file: %[1]q, key_file: %[2]q, ca_file: %[3]q }
cluster {
  name: tranche
  listen: 127.0.0.1:%[4]d
  routes: [%[5]s]
  tls { cert_file: %[1]q, key_file: %[2]q, ca_file: %[3]q, verify: true }
}
`

// startNATS starts three servers that speak TLS with clients and with one another.
func startNATS(t *testing.T, ca *authority) (urls string, servers []*natsserver.Server) {
	t.Helper()
	cert, key := ca.certify(t, "127.0.0.1")
	ports, routes := make([]int, 3), make([]string, 3)
	for i := range ports {
		ports[i] = testenv.QuietPort(t)
		routes[i] = fmt.Sprintf("%q", fmt.Sprintf("nats://127.0.0.1:%d", ports[i]))
	}
	all := make([]string, 3)
	for i := range ports {
		s := testenv.NATSByConfig(t, fmt.Sprintf(natsTLS, cert, key, ca.file, ports[i], strings.Join(routes, ", "), i))
		servers = append(servers, s.Server())
		all[i] = strings.Replace(s.URL(), "nats://", "tls://", 1)
	}
	until(t, "the servers are one", func() bool {
		for _, s := range servers {
			if !s.JetStreamIsCurrent() || s.NumRoutes() == 0 {
				return false
			}
		}
		return true
	})
	return strings.Join(all, ","), servers
}

// startPostgres starts a server that takes nothing but TLS over the network, and returns a database's URL that says
// nothing of it. It has an address of its own, so that its port is free.
func startPostgres(t *testing.T, ca *authority) string {
	t.Helper()
	at := fmt.Sprintf("127.83.%d.%d", os.Getpid()>>8&0xff, os.Getpid()&0xff)
	cert, key := ca.certify(t, at)
	hba := filepath.Join(ca.dir, "pg_hba.conf")
	write(t, hba, []byte("local all all trust\nhostssl all all 127.0.0.0/8 scram-sha-256\n"))
	dir, err := os.MkdirTemp("", "operate-pg-") //nolint:usetesting // another user owns it, and a socket's path is short
	testenv.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	testenv.NoError(t, os.Chmod(dir, 0o711))
	config := embedded.PostgresConfig{DataDir: dir, NoRestart: true, Bound: true}
	first := testenv.Must(embedded.StartPostgres(t.Context(), config))(t) // which makes it, and its user
	local := testenv.Must(url.Parse(first.URL()))(t)
	conn := testenv.Connect(t, first.URL())
	for _, sql := range []string{"CREATE ROLE app LOGIN PASSWORD 'secret'", "CREATE DATABASE tls OWNER app"} {
		testenv.Must(conn.Exec(t.Context(), sql))(t)
	}
	conn.Close()
	info := testenv.Must(os.Stat(local.Query().Get("host")))(t)
	owner := info.Sys().(*syscall.Stat_t)
	for _, file := range []string{key, hba} {
		testenv.NoError(t, os.Chown(file, int(owner.Uid), int(owner.Gid)))
	}
	testenv.NoError(t, first.Stop(t.Context()))
	config.Settings = map[string]string{"listen_addresses": at, "ssl": "on", "ssl_cert_file": cert, "ssl_key_file": key,
		"hba_file": hba}
	pg := testenv.Must(embedded.StartPostgres(t.Context(), config))(t)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		testenv.NoError(t, pg.Stop(ctx))
	})
	return "postgres://app:secret@" + net.JoinHostPort(at, local.Query().Get("port")) + "/tls"
}

type authority struct {
	dir  string
	file string // its own certificate
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	made int64
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	dir := testenv.Must(os.MkdirTemp("", "operate-"))(t) //nolint:usetesting // servers of other users read in it
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	testenv.NoError(t, os.Chmod(dir, 0o755))
	a := &authority{dir: dir, file: filepath.Join(dir, "ca.pem")}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour), BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign}
	a.cert, a.key = template, newKey(t)
	a.cert = a.sign(t, template, a.key, a.file)
	return a
}

// certify makes a certificate of a server or a client for a name or an address, and its key.
func (a *authority) certify(t *testing.T, name string) (cert, key string) {
	t.Helper()
	a.made++
	template := &x509.Certificate{SerialNumber: big.NewInt(1 + a.made), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	if ip := net.ParseIP(name); ip != nil {
		template.IPAddresses = []net.IP{ip}
	} else {
		template.DNSNames = []string{name}
	}
	own := newKey(t)
	cert, key = filepath.Join(a.dir, name+".pem"), filepath.Join(a.dir, name+"-key.pem")
	a.sign(t, template, own, cert)
	der := testenv.Must(x509.MarshalPKCS8PrivateKey(own))(t)
	write(t, key, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}))
	return cert, key
}

func (a *authority) sign(t *testing.T, template *x509.Certificate, key *ecdsa.PrivateKey, file string,
) *x509.Certificate {
	t.Helper()
	der := testenv.Must(x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key))(t)
	made := testenv.Must(x509.ParseCertificate(der))(t)
	write(t, file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	if err := os.Chmod(file, 0o644); err != nil { // certificates are for everybody
		t.Fatal(err)
	}
	return made
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	return testenv.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
}

func write(t *testing.T, file string, text []byte) {
	t.Helper()
	testenv.NoError(t, os.WriteFile(file, text, 0o600))
}
