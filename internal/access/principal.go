// Package access authenticates and authorizes: roles, tokens and web sessions, and the caller of a request.
//
// Guarantees: a secret has 160 random bits, is shown once and stored as its SHA-256. A revoked or expired credential
// has no effect [RevocationTime] later, on any node: the contexts of its requests in progress are cancelled. A
// credential that cannot be checked for that long is refused. Logins are throttled per address and in total.
//
// Not its job: HTTP answers, cookies and routes (package api), and SQL (package workqueue).
//
// Everything here is safe for concurrent use.
package access

import (
	"cmp"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// RevocationTime is the maximum time for which a revoked or expired token or session has effect, on any node.
const RevocationTime = 5 * time.Second

var (
	// ErrNobody is returned for a request without credentials.
	ErrNobody = errors.New("no one is logged in")
	// ErrRevoked is the cause of a request's cancelled context after its token was revoked or expired, or its session
	// ended.
	ErrRevoked = errors.New("the token was revoked or expired, or the session ended")
	// ErrUnchecked is that cause when the credential could not be checked for too long.
	ErrUnchecked = errors.New("it cannot be found out whether the token is still good")
)

// RefusedError is returned for an invalid credential.
type RefusedError struct {
	Session bool
	State   identity.TokenState // empty: unknown
}

func (e *RefusedError) Error() string {
	what := "the token"
	if e.Session {
		what = "the session"
	}
	switch e.State {
	case identity.TokenExpired:
		return what + " has expired"
	case identity.TokenRevoked:
		return what + " was revoked"
	case identity.TokenElsewhere:
		return what + " may not be used from this address"
	case identity.TokenActive:
		return what + " is of no use here" // it has a role that this version does not know
	default:
		return what + " is not known here"
	}
}

// Principal is the caller of a request.
type Principal struct {
	Name      string            // the actor in the audit log
	Role      Role              // in every namespace, and for what belongs to none; may be None
	Grants    map[string]string // further roles, by namespace
	Token     *identity.TokenID // nil: not by token
	Session   bool              // a browser with a cookie
	ExpiresAt *time.Time

	hash     [sha256.Size]byte
	checked  time.Time // when this was read
	networks []netip.Prefix

	certificate string       // its number and issuer; empty: the database knows the credential
	standing    func() error // of the certificate
}

func principalOf(c *identity.Credential, session bool, asked time.Time) (Principal, error) {
	role, err := ParseRole(c.Role)
	if c.Role == string(None) {
		role, err = None, nil
	}
	// Roles of other versions do not count.
	maps.DeleteFunc(c.Grants, func(_, role string) bool { return !slices.Contains(Roles(), Role(role)) })
	if c.State != identity.TokenActive || err != nil || role == None && len(c.Grants) == 0 {
		return Principal{}, &RefusedError{Session: session, State: c.State}
	}
	p := Principal{Name: c.User, Role: role, Grants: c.Grants, Token: c.Token, Session: session, ExpiresAt: c.ExpiresAt,
		hash: [sha256.Size]byte(c.Hash), checked: asked}
	for _, text := range c.Networks {
		network, err := netip.ParsePrefix(text)
		if err != nil { // of another version
			return Principal{}, &RefusedError{Session: session, State: identity.TokenElsewhere}
		}
		p.networks = append(p.networks, network)
	}
	return p, nil
}

// from refuses a credential that is used from outside its networks.
func (p *Principal) from(address netip.Addr) error {
	if len(p.networks) == 0 || slices.ContainsFunc(p.networks, func(n netip.Prefix) bool { return n.Contains(address) }) {
		return nil
	}
	return &RefusedError{Session: p.Session, State: identity.TokenElsewhere}
}

// Origin returns what the audit log says of the caller's credentials.
func (p *Principal) Origin() (o workqueue.Origin) {
	if p.Token != nil {
		o.Token = p.Token.String()
	}
	if p.Session {
		o.Session = hex.EncodeToString(p.hash[:6])
	}
	o.Certificate = p.certificate
	return o
}

// SessionHash returns the hash of the cookie; nil: no session.
func (p *Principal) SessionHash() []byte {
	if !p.Session {
		return nil
	}
	return p.hash[:]
}

// RoleIn returns the caller's role in a namespace.
func (p *Principal) RoleIn(namespace string) Role {
	if granted := Role(p.Grants[namespace]); granted.Allows(p.Role) && granted != "" {
		return granted
	}
	return p.Role
}

// Namespaces returns the namespaces in which the caller is granted a role.
func (p *Principal) Namespaces(needed Role) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(p.Grants)) {
		if Role(p.Grants[name]).Allows(needed) {
			names = append(names, name)
		}
	}
	return names
}

type principalKey struct{}

// With returns a context with the caller.
func With(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// From returns the caller; false if unknown, as where no login is needed.
func From(ctx context.Context) (Principal, bool) {
	p, ok := ctx.Value(principalKey{}).(Principal)
	return p, ok
}

// Recheck returns why a long request must end; nil if it may continue. Its context is cancelled within
// RevocationTime, so code that watches the context need not call it.
func Recheck(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, ErrRevoked) || errors.Is(cause, ErrUnchecked) {
		return fmt.Errorf("the request may not continue: %w", cause)
	}
	return nil
}

// Anonymous is the audit log's name for unknown callers.
const Anonymous = identity.Anonymous

// Maximum lengths, in characters: of a name, and of any actor, which may be the subject of a certificate.
const (
	MaxName  = 100
	MaxActor = 512
)

// CheckTokenName refuses names for tokens that may look like another's: those with other characters than ASCII letters,
// digits and ._- or single spaces. So none is an email or a subject of an identity provider.
func CheckTokenName(name string) error {
	if !tokenName.MatchString(name) {
		return errors.New("may have only letters from A to Z, digits, and between them single spaces, dots, hyphens and " +
			"underscores")
	}
	return CheckName(name)
}

var tokenName = regexp.MustCompile(`^[A-Za-z0-9]+([ ._-][A-Za-z0-9]+)*$`)

// CheckName refuses names that would mislead readers of the audit log.
func CheckName(name string) error { return checkName(name, MaxName) }

func checkName(name string, most int) error {
	strange := strings.IndexFunc(name, func(r rune) bool { return !unicode.IsGraphic(r) || r == unicode.ReplacementChar })
	switch {
	case name == "" || strings.TrimSpace(name) != name:
		return errors.New("there must be a name, without spaces around it, by which the audit log tells who acted")
	case len([]rune(name)) > most:
		return fmt.Errorf("it has more than %d characters; shorten it", most)
	case strange >= 0:
		return errors.New(strconv.Quote(name) + " has a character that no one sees; leave it out")
	case strings.EqualFold(name, workqueue.Engine) || strings.EqualFold(name, Anonymous):
		return errors.New(name + " is what the audit log calls what no one did, or no one known; choose another")
	default:
		return nil
	}
}

// Role is a level of permission. Each role includes the previous ones.
type Role string

// The roles, and None for public routes.
const (
	None     Role = "none"     // of a route: open without login; of a caller: none beyond their grants
	Watcher  Role = "watcher"  // sees states and counts, but no keys, payloads or results
	Viewer   Role = "viewer"   // reads everything
	Operator Role = "operator" // changes runs, items, plans, endpoints and dead letters
	Admin    Role = "admin"    // creates and revokes tokens, deletes plans
)

// Roles lists the assignable roles, weakest first.
func Roles() []Role { return []Role{Watcher, Viewer, Operator, Admin} }

// Allows reports whether the role includes another. An unknown role allows nothing and is included in none.
func (r Role) Allows(needed Role) bool {
	if needed == None {
		return true
	}
	own, wanted := slices.Index(Roles(), r), slices.Index(Roles(), needed)
	return wanted >= 0 && own >= wanted
}

// ParseRole parses an assignable role.
func ParseRole(text string) (Role, error) {
	if role := Role(text); slices.Contains(Roles(), role) {
		return role, nil
	}
	names := make([]string, 0, len(Roles()))
	for _, r := range Roles() {
		names = append(names, string(r))
	}
	return "", fmt.Errorf("the role %q is none; use one of %s", text, strings.Join(names, ", "))
}

// ParseGrant parses NAMESPACE:ROLE, or a ROLE for all namespaces.
func ParseGrant(text string) (namespace string, role Role, err error) {
	namespace, name, in := strings.Cut(text, ":")
	if !in {
		role, err = ParseRole(text)
		return "", role, err
	}
	if err = workqueue.CheckNamespace(namespace); err == nil {
		role, err = ParseRole(name)
	}
	return namespace, role, err
}

// GrantsText writes roles like "viewer, team-a:operator".
func GrantsText(role Role, grants map[string]string) string {
	all := []string{}
	if role != None || len(grants) == 0 {
		all = append(all, string(role))
	}
	for _, namespace := range slices.Sorted(maps.Keys(grants)) {
		all = append(all, namespace+":"+grants[namespace])
	}
	return strings.Join(all, ", ")
}

// Prefix starts every token, so that secret scanners find leaked ones.
const Prefix = "tr_"

const (
	secretBytes = 20 // 160 random bits: 32 characters
	digits      = "abcdefghijklmnopqrstuvwxyz234567"
	sumDigits   = 7 // of 32 bits
	// SecretChars is the length of a secret, with its prefix.
	SecretChars = len(Prefix) + 32 + sumDigits
)

func base32Text(b []byte) string {
	return base32.NewEncoding(digits).WithPadding(base32.NoPadding).EncodeToString(b)
}

// NewSecret returns a new token: the prefix, 160 random bits, and a checksum that reveals truncation and typos
// offline.
func NewSecret() string {
	b := make([]byte, secretBytes)
	_, _ = rand.Read(b) // never fails: the program ends instead
	text := Prefix + base32Text(b)
	return text + checksum(text)
}

func checksum(text string) string {
	return base32Text(binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(text))))
}

// WellFormed reports whether a text has the form of a token.
func WellFormed(text string) bool {
	if len(text) != SecretChars || !strings.HasPrefix(text, Prefix) {
		return false
	}
	body := text[:SecretChars-sumDigits]
	return strings.Trim(body[len(Prefix):], digits) == "" && checksum(body) == text[len(body):]
}

func newCookie() string {
	b := make([]byte, sha256.Size)
	_, _ = rand.Read(b) // as above
	return base32Text(b)
}

func wellFormedCookie(text string) bool {
	return len(text) == base32.StdEncoding.WithPadding(base32.NoPadding).EncodedLen(sha256.Size) &&
		strings.Trim(text, digits) == ""
}

// HashOf returns the stored hash of a secret. 160 random bits need neither salt nor stretching.
func HashOf(secret string) [sha256.Size]byte { return sha256.Sum256([]byte(secret)) }

const leastRedacted = 12

// Redact removes tokens, also truncated ones, from text to show or log.
func Redact(text string) string {
	var out strings.Builder
	for {
		before, after, found := strings.Cut(text, Prefix)
		out.WriteString(before)
		if !found {
			return out.String()
		}
		out.WriteString(Prefix)
		rest := strings.TrimLeft(after, digits)
		if len(after)-len(rest) >= leastRedacted {
			out.WriteString("…")
			after = rest
		}
		text = after
	}
}

// Purposes of sealed data; data sealed for one cannot be opened for another.
const (
	sealAttempt = "tranche login attempt"
	sealRenewal = "tranche session renewal"
)

// sealer encrypts and authenticates data stored elsewhere. Nodes with the same secret have the same key; without a
// secret the key is random per process.
type sealer struct{ aead cipher.AEAD }

func newSealer(secret string) (sealer, error) {
	key, err := hkdf.Key(sha256.New, []byte(cmp.Or(secret, rand.Text())), nil, "tranche oidc", 32)
	if err != nil {
		return sealer{}, fmt.Errorf("derive a key: %w", err)
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return sealer{}, fmt.Errorf("derive a key: %w", err)
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil {
		return sealer{}, fmt.Errorf("derive a key: %w", err)
	}
	return sealer{aead}, nil
}

func (s sealer) seal(purpose string, plain []byte) []byte {
	return s.aead.Seal(nil, nil, plain, []byte(purpose)) //nolint:gosec // nonces are random, made by the cipher
}

func (s sealer) open(purpose string, sealed []byte) ([]byte, bool) {
	plain, err := s.aead.Open(nil, nil, sealed, []byte(purpose))
	return plain, err == nil
}
