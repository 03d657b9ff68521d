package access

import (
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/pem"
	"fmt"
	"math/big"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"go.uber.org/zap"
)

// certPrefix separates names made of a certificate's subject from names of tokens and of people.
const certPrefix = "cert:"

const maxSubject = MaxActor - len(certPrefix)

// crlLook is the interval for checking whether the revocation list was renewed.
const crlLook = time.Second

// CertificatesConfig says which client certificates are accepted.
type CertificatesConfig struct {
	CAFile  string          // the authorities, in PEM
	CRLFile string          // revocation lists of theirs, in PEM, read again when renewed; empty: none
	Roles   map[string]Role // by subject, as in RFC 2253; see [ParseGrant]
	Log     *zap.Logger     // nil: none
}

// Certificates authenticates callers by client certificates. It is safe for concurrent use.
type Certificates struct {
	CertificatesConfig
	Pool *x509.CertPool // the authorities

	authorities []*x509.Certificate

	mu      sync.Mutex
	until   map[string]time.Time // when the newest list of an issuer expires
	revoked map[string]bool      // by numbered
	of      time.Time            // modification time of the file
	looked  time.Time
	wrong   string // what is wrong with the file now
}

// NewCertificates reads the files.
func NewCertificates(config CertificatesConfig) (*Certificates, error) {
	config.Log = cmp.Or(config.Log, zap.NewNop())
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
		if err := checkName(subject, maxSubject); err != nil {
			return nil, fmt.Errorf("--client-roles %q: %w", subject, err)
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
	until, revoked := map[string]time.Time{}, map[string]bool{}
	err = eachPEM(c.CRLFile, "X509 CRL", func(der []byte) error {
		list, err := x509.ParseRevocationList(der)
		if err != nil {
			return err
		}
		if !slices.ContainsFunc(c.authorities, func(a *x509.Certificate) bool {
			return bytes.Equal(a.RawSubject, list.RawIssuer) && list.CheckSignatureFrom(a) == nil
		}) {
			return fmt.Errorf("the list of %s is signed by no such authority of --client-ca", list.Issuer)
		}
		issuer := string(list.RawIssuer)
		if until[issuer].Before(list.NextUpdate) {
			until[issuer] = list.NextUpdate
		}
		for i := range list.RevokedCertificateEntries {
			revoked[numbered(issuer, list.RevokedCertificateEntries[i].SerialNumber)] = true
		}
		return nil
	})
	if err == nil {
		c.until, c.revoked, c.of = until, revoked, info.ModTime()
	}
	return err
}

// numbered tells a certificate from all others.
func numbered(issuer string, serial *big.Int) string { return serial.Text(16) + " " + issuer }

// Caller returns the holder of a connection's client certificate; ErrNobody without one. The error is a DeniedError for
// a certificate without a role, or one that is expired or revoked.
func (c *Certificates) Caller(state *tls.ConnectionState) (Principal, error) {
	if c == nil || state == nil || len(state.VerifiedChains) == 0 {
		return Principal{}, ErrNobody
	}
	cert := state.VerifiedChains[0][0]
	subject, err := subjectOf(cert)
	if err != nil {
		return Principal{}, &DeniedError{Why: "the certificate " + err.Error()}
	}
	standing := func() error {
		if why := c.fault(state.VerifiedChains); why != "" {
			return &DeniedError{Why: fmt.Sprintf("the certificate of %.200q %s", subject, why)}
		}
		return nil
	}
	if err := standing(); err != nil {
		return Principal{}, err
	}
	namespace, role, err := ParseGrant(string(c.Roles[subject]))
	if err != nil {
		return Principal{}, &DeniedError{Role: true, Why: fmt.Sprintf("the certificate of %.*q has no role here "+
			"(serve --client-roles)", maxSubject, subject)}
	}
	p := Principal{Name: certPrefix + subject, Role: role, ExpiresAt: &cert.NotAfter, standing: standing,
		certificate: numbered(cert.Issuer.String(), cert.SerialNumber)}
	if namespace != "" {
		p.Role, p.Grants = None, map[string]string{namespace: string(role)}
	}
	return p, nil
}

// subjectOf returns all of a subject, in its order, with names for common attributes that package pkix has numbers for.
func subjectOf(cert *x509.Certificate) (string, error) {
	var subject pkix.RDNSequence
	if _, err := asn1.Unmarshal(cert.RawSubject, &subject); err != nil {
		return "", fmt.Errorf("has an invalid subject: %w", err)
	}
	named := map[string]string{"0.9.2342.19200300.100.1.25": "DC", "0.9.2342.19200300.100.1.1": "UID",
		"1.2.840.113549.1.9.1": "emailAddress"}
	commonName, names := asn1.ObjectIdentifier{2, 5, 4, 3}, 0
	var parts []string
	for _, set := range slices.Backward(subject) {
		var part []string
		for _, a := range set {
			name := named[a.Type.String()]
			if a.Type.Equal(commonName) {
				names++
			} else if name != "" {
				a.Type = commonName // which has the same form
			}
			text := pkix.RDNSequence{{a}}.String()
			if name != "" {
				text = name + strings.TrimPrefix(text, "CN")
			}
			part = append(part, text)
		}
		parts = append(parts, strings.Join(part, "+"))
	}
	text := strings.Join(parts, ",")
	switch {
	case names > 1:
		return "", fmt.Errorf("of %.200q has more than one CN", text)
	case len([]rune(text)) > maxSubject:
		return "", fmt.Errorf("of %.200q has a subject of more than %d characters", text, maxSubject)
	}
	return text, nil
}

// fault is checked with each request: a connection may be older than a revocation. Without a current list of its
// issuer, a certificate is refused: it may be revoked. Intermediate authorities are refused if a list has them.
func (c *Certificates) fault(chains [][]*x509.Certificate) string {
	cert := chains[0][0]
	now := time.Now()
	if now.After(cert.NotAfter) {
		return "has expired"
	}
	if c.CRLFile == "" {
		return ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if now.Sub(c.looked) > crlLook {
		c.looked = now
		c.renewLists()
	}
	for _, chain := range chains {
		for _, one := range chain[:len(chain)-1] {
			if c.revoked[numbered(string(one.RawIssuer), one.SerialNumber)] {
				return "is revoked"
			}
		}
	}
	if now.After(c.until[string(cert.RawIssuer)]) {
		return "cannot be checked: --client-crl has no current list of its issuer"
	}
	return ""
}

// renewLists reads a renewed file. If it cannot, the lists before stay until they expire.
func (c *Certificates) renewLists() {
	wrong := ""
	if err := c.readLists(); err != nil {
		wrong = err.Error()
	}
	if wrong != c.wrong && wrong != "" {
		c.Log.Warn("cannot read the revocation lists; the former ones count until they expire", zap.String("error", wrong))
	}
	c.wrong = wrong
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
