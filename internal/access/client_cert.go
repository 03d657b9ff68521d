package access

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

// certPrefix separates names made of a certificate's subject from names of tokens and of people.
const certPrefix = "cert:"

// crlLook is the interval for checking whether the revocation list was renewed.
const crlLook = time.Second

// CertificatesConfig says which client certificates are accepted.
type CertificatesConfig struct {
	CAFile  string          // the authorities, in PEM
	CRLFile string          // revocation lists of theirs, in PEM, read again when renewed; empty: none
	Roles   map[string]Role // by subject, as in RFC 2253; see [ParseGrant]
}

// Certificates authenticates callers by client certificates. It is safe for concurrent use.
type Certificates struct {
	CertificatesConfig
	Pool *x509.CertPool // the authorities

	authorities []*x509.Certificate

	mu     sync.Mutex
	lists  []*x509.RevocationList
	of     time.Time // modification time of the file
	looked time.Time
}

// NewCertificates reads the files.
func NewCertificates(config CertificatesConfig) (*Certificates, error) {
	c := &Certificates{CertificatesConfig: config, Pool: x509.NewCertPool()}
	err := eachPEM(config.CAFile, "CERTIFICATE", func(der []byte) error {
		authority, err := x509.ParseCertificate(der)
		if err == nil {
			c.Pool.AddCert(authority)
			c.authorities = append(c.authorities, authority)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("--client-ca: %w", err)
	}
	for subject := range config.Roles {
		if err := CheckName(certPrefix + subject); err != nil {
			return nil, fmt.Errorf("--client-roles: %w", err)
		}
	}
	if config.CRLFile == "" {
		return c, nil
	}
	if err := c.readLists(); err != nil {
		return nil, fmt.Errorf("--client-crl: %w", err)
	}
	return c, nil
}

func eachPEM(file, kind string, use func(der []byte) error) error {
	rest, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	found := false
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != kind {
			continue
		}
		if err := use(block.Bytes); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		found = true
	}
	if !found {
		return fmt.Errorf("%s has no %s in PEM", file, kind)
	}
	return nil
}

func (c *Certificates) readLists() error {
	info, err := os.Stat(c.CRLFile)
	if err != nil || info.ModTime().Equal(c.of) {
		return err
	}
	var lists []*x509.RevocationList
	err = eachPEM(c.CRLFile, "X509 CRL", func(der []byte) error {
		list, err := x509.ParseRevocationList(der)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(c.authorities, func(a *x509.Certificate) bool { return list.CheckSignatureFrom(a) == nil }) {
			return fmt.Errorf("the list of %s is signed by no authority of --client-ca", list.Issuer)
		}
		lists = append(lists, list)
		return nil
	})
	if err == nil {
		c.lists, c.of = lists, info.ModTime()
	}
	return err
}

// Caller returns the holder of a connection's client certificate; ErrNobody without one. The error is a DeniedError for
// a certificate without a role, or one that is expired or revoked.
func (c *Certificates) Caller(state *tls.ConnectionState) (Principal, error) {
	if c == nil || state == nil || len(state.VerifiedChains) == 0 {
		return Principal{}, ErrNobody
	}
	cert := state.VerifiedChains[0][0]
	subject := cert.Subject.String()
	if err := c.standing(cert); err != nil {
		return Principal{}, err
	}
	namespace, role, err := ParseGrant(string(c.Roles[subject]))
	if err != nil {
		return Principal{}, &DeniedError{Role: true, Why: fmt.Sprintf("the certificate of %.200q has no role here "+
			"(serve --client-roles)", subject)}
	}
	p := Principal{Name: certPrefix + subject, Role: role, ExpiresAt: &cert.NotAfter,
		standing: func() error { return c.standing(cert) }}
	if namespace != "" {
		p.Role, p.Grants = None, map[string]Role{namespace: role}
	}
	return p, nil
}

// standing is checked with each request: a connection may be older than a revocation. Without a current list of its
// issuer, a certificate is refused: it may be revoked.
func (c *Certificates) standing(cert *x509.Certificate) error {
	denied := func(why string) error {
		return &DeniedError{Why: fmt.Sprintf("the certificate of %.200q %s", cert.Subject.String(), why)}
	}
	now := time.Now()
	if now.After(cert.NotAfter) {
		return denied("has expired")
	}
	if c.CRLFile == "" {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.looked) > crlLook {
		c.looked = now
		_ = c.readLists() // the one before stays, until it has expired
	}
	for _, list := range c.lists {
		if string(list.RawIssuer) != string(cert.RawIssuer) || now.After(list.NextUpdate) {
			continue
		}
		if slices.ContainsFunc(list.RevokedCertificateEntries, func(e x509.RevocationListEntry) bool {
			return e.SerialNumber.Cmp(cert.SerialNumber) == 0
		}) {
			return denied("is revoked")
		}
		return nil
	}
	return denied("cannot be checked: --client-crl has no current list of its issuer")
}

// watchCertificate is Admit for the holder of a certificate.
func watchCertificate(ctx context.Context, p Principal) (admitted context.Context, done func()) {
	admitted, cancel := context.WithCancelCause(With(ctx, p))
	go func() {
		look := time.NewTicker(recheckPause)
		defer look.Stop()
		for {
			select {
			case <-admitted.Done():
				return
			case <-look.C:
				if p.standing() != nil {
					cancel(ErrRevoked)
				}
			}
		}
	}()
	return admitted, func() { cancel(nil) }
}
