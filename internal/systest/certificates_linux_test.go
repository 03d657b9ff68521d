package systest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// authority signs certificates.
type authority struct {
	dir  string
	file string // its own certificate
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	made int64
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	dir, err := os.MkdirTemp("", "operate-") //nolint:usetesting // servers of other users read in it
	testenv.NoError(t, err)
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
	made, err := x509.ParseCertificate(der)
	testenv.NoError(t, err)
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
