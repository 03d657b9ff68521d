package api

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

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// NewCertificate makes a certificate for 127.0.0.1, in files of a directory.
func NewCertificate(t *testing.T, dir string, serial int64) (cert, key string) {
	t.Helper()
	pair := testenv.Must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))(t)
	about := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "a test"},
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true,
		BasicConstraintsValid: true}
	der := testenv.Must(x509.CreateCertificate(rand.Reader, about, about, pair.Public(), pair))(t)
	secret := testenv.Must(x509.MarshalPKCS8PrivateKey(pair))(t)
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for name, block := range map[string]*pem.Block{
		cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret},
	} {
		testenv.NoError(t, os.WriteFile(name, pem.EncodeToMemory(block), 0o600))
	}
	return cert, key
}

// A certificate that was renewed is taken without a restart; one that cannot be read leaves the one before it.
func TestARenewedCertificateIsTaken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := &certificate{log: zap.NewNop()}
	c.certFile, c.keyFile = NewCertificate(t, dir, 1)
	testenv.NoError(t, c.load())
	current := func() int64 {
		t.Helper()
		pair := testenv.Must(c.current(nil))(t)
		return pair.Leaf.SerialNumber.Int64()
	}
	NewCertificate(t, dir, 2)
	later := time.Now().Add(time.Second)
	testenv.NoError(t, os.Chtimes(c.certFile, later, later))
	testenv.Same(t, current(), 1, "the files were read again immediately: certificate")
	c.looked = time.Now().Add(-2 * certificateLook)
	testenv.Same(t, current(), 2, "after the renewal the certificate")
	testenv.NoError(t, os.WriteFile(c.certFile, []byte("half a certificate"), 0o600))
	c.looked = time.Now().Add(-2 * certificateLook)
	testenv.Same(t, current(), 2, "with a broken file the certificate")
}
