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
)

// NewCertificate makes a certificate for 127.0.0.1, in files of a directory.
func NewCertificate(t *testing.T, dir string, serial int64) (cert, key string) {
	t.Helper()
	pair, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	about := &x509.Certificate{SerialNumber: big.NewInt(serial), Subject: pkix.Name{CommonName: "a test"},
		NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true,
		BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, about, about, pair.Public(), pair)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(pair)
	if err != nil {
		t.Fatal(err)
	}
	cert, key = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for name, block := range map[string]*pem.Block{
		cert: {Type: "CERTIFICATE", Bytes: der}, key: {Type: "PRIVATE KEY", Bytes: secret},
	} {
		if err := os.WriteFile(name, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// A certificate that was renewed is taken without a restart; one that cannot be read leaves the one before it.
func TestARenewedCertificateIsTaken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	c := &certificate{log: zap.NewNop()}
	c.certFile, c.keyFile = NewCertificate(t, dir, 1)
	if err := c.load(); err != nil {
		t.Fatal(err)
	}
	current := func() int64 {
		t.Helper()
		pair, err := c.current(nil)
		if err != nil {
			t.Fatal(err)
		}
		return pair.Leaf.SerialNumber.Int64()
	}
	NewCertificate(t, dir, 2)
	later := time.Now().Add(time.Second)
	if err := os.Chtimes(c.certFile, later, later); err != nil {
		t.Fatal(err)
	}
	if n := current(); n != 1 {
		t.Errorf("the files were read again at once: certificate %d", n)
	}
	c.looked = time.Now().Add(-2 * certificateLook)
	if n := current(); n != 2 {
		t.Errorf("after the renewal the certificate is %d; want 2", n)
	}
	if err := os.WriteFile(c.certFile, []byte("half a certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	c.looked = time.Now().Add(-2 * certificateLook)
	if n := current(); n != 2 {
		t.Errorf("with a broken file the certificate is %d; want 2", n)
	}
}
