// Package access knows who may do what: roles, tokens and web sessions, and who is behind a request.
//
// Guarantees: a secret has 160 random bits, is shown once and kept as its SHA-256; what is revoked, or has expired,
// does nothing more [RevocationTime] later, on every node, and requests that are in progress by then have their context
// cancelled; whoever cannot be checked for that long is refused. Logins are throttled, for each address and in all.
//
// Not its job: HTTP's answers, cookies and routes, which are package api's, and SQL, which is package workqueue's.
//
// Concurrency: everything here is safe for concurrent use.
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
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// RevocationTime is how long after its end a token or a session may have an effect, at most and on any node.
const RevocationTime = 5 * time.Second

var (
	// ErrNobody is returned for a request that does not say who makes it.
	ErrNobody = errors.New("no one is logged in")
	// ErrRevoked is the cause by which the context of a request ends whose token was revoked, or has expired, or whose
	// session has ended.
	ErrRevoked = errors.New("the token was revoked or expired, or the session ended")
	// ErrUnchecked is that cause when it could not be found out for too long whether it may go on.
	ErrUnchecked = errors.New("it cannot be found out whether the token is still good")
)

// RefusedError is returned for a secret that is of no use.
type RefusedError struct {
	Session bool
	State   identity.TokenState // empty: no one knows it
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
	case identity.TokenActive:
		return what + " is of no use here" // it has a role that this version does not know
	default:
		return what + " is not known here"
	}
}

// Principal is who makes a request.
type Principal struct {
	Name      string // the actor in the audit log
	Role      Role
	Token     *identity.TokenID // nil: someone else vouched for them
	Session   bool              // a browser, by its cookie
	ExpiresAt *time.Time

	hash    [sha256.Size]byte
	checked time.Time // when it was asked for what is said here
}

func principalOf(c *identity.Credential, session bool, asked time.Time) (Principal, error) {
	role, err := ParseRole(c.Role)
	if c.State != identity.TokenActive || err != nil {
		return Principal{}, &RefusedError{Session: session, State: c.State}
	}
	return Principal{Name: c.User, Role: role, Token: c.Token, Session: session, ExpiresAt: c.ExpiresAt,
		hash: [sha256.Size]byte(c.Hash), checked: asked}, nil
}

type principalKey struct{}

// With returns a context that says who makes the request.
func With(ctx context.Context, p Principal) context.Context {
	return context.WithValue(ctx, principalKey{}, p)
}

// From returns who makes the request; false when no one is known, as where no login is needed.
func From(ctx context.Context) (Principal, bool) {
	p, ok := ctx.Value(principalKey{}).(Principal)
	return p, ok
}

// Recheck says why a request that has gone on for a while must end: nil while it may go on. Its context ends by itself
// within RevocationTime, so what watches that needs not ask.
func Recheck(ctx context.Context) error {
	cause := context.Cause(ctx)
	if errors.Is(cause, ErrRevoked) || errors.Is(cause, ErrUnchecked) {
		return fmt.Errorf("the request may not go on: %w", cause)
	}
	return nil
}

// Anonymous is what the audit log calls those who do not say who they are.
const Anonymous = identity.Anonymous

// MaxName is how many characters a name has at most.
const MaxName = 100

// CheckName refuses names that would mislead whoever reads the audit log.
func CheckName(name string) error {
	strange := strings.IndexFunc(name, func(r rune) bool { return !unicode.IsGraphic(r) || r == unicode.ReplacementChar })
	switch {
	case name == "" || strings.TrimSpace(name) != name:
		return errors.New("there must be a name, without spaces around it, by which the audit log tells who acted")
	case len([]rune(name)) > MaxName:
		return fmt.Errorf("it has more than %d characters; shorten it", MaxName)
	case strange >= 0:
		return errors.New(strconv.Quote(name) + " has a character that no one sees; leave it out")
	case strings.EqualFold(name, workqueue.Engine) || strings.EqualFold(name, Anonymous):
		return errors.New(name + " is what the audit log calls what no one did, or no one known; choose another")
	default:
		return nil
	}
}

// Role says what someone may do. Each role may do what those before it may.
type Role string

// The roles, and None for what needs no one.
const (
	None     Role = "none"     // of a route: open to everybody, also without a login
	Viewer   Role = "viewer"   // looks at everything
	Operator Role = "operator" // changes runs, items, plans, endpoints and dead letters
	Admin    Role = "admin"    // makes and revokes tokens, deletes plans
)

// Roles lists those that someone can have, the weakest first.
func Roles() []Role { return []Role{Viewer, Operator, Admin} }

// Allows reports whether someone with this role may do what needs another. A role that is none of ours allows nothing,
// and no one is allowed what needs one.
func (r Role) Allows(needed Role) bool {
	if needed == None {
		return true
	}
	own, wanted := slices.Index(Roles(), r), slices.Index(Roles(), needed)
	return wanted >= 0 && own >= wanted
}

// ParseRole reads a role that someone can have.
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

// Prefix is what the secret of every token begins with, so that scanners find those that lie around.
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

// NewSecret returns the secret of a new token: the prefix, 160 random bits, and a checksum, by which one that was cut
// off or mistyped is known without asking anybody.
func NewSecret() string {
	b := make([]byte, secretBytes)
	_, _ = rand.Read(b) // never fails: the program ends instead
	text := Prefix + base32Text(b)
	return text + checksum(text)
}

func checksum(text string) string {
	return base32Text(binary.BigEndian.AppendUint32(nil, crc32.ChecksumIEEE([]byte(text))))
}

// WellFormed reports whether a text can be the secret of a token.
func WellFormed(text string) bool {
	if len(text) != SecretChars || !strings.HasPrefix(text, Prefix) {
		return false
	}
	body := text[:SecretChars-sumDigits]
	return strings.Trim(body[len(Prefix):], digits) == "" && checksum(body) == text[len(body):]
}

// newCookie returns the secret of a web session.
func newCookie() string {
	b := make([]byte, sha256.Size)
	_, _ = rand.Read(b) // as above
	return base32Text(b)
}

// wellFormedCookie reports whether a text can be the secret of a web session.
func wellFormedCookie(text string) bool {
	return len(text) == base32.StdEncoding.WithPadding(base32.NoPadding).EncodedLen(sha256.Size) &&
		strings.Trim(text, digits) == ""
}

// HashOf is what is kept of a secret. It needs neither salt nor effort: no one guesses 160 bits.
func HashOf(secret string) [sha256.Size]byte { return sha256.Sum256([]byte(secret)) }

// leastRedacted is how long a piece of a secret is that does not stay in a text.
const leastRedacted = 12

// Redact takes the secrets of tokens out of a text that will be shown or logged, also of those that were cut off.
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

// What is sealed is for one purpose only.
const (
	sealAttempt = "tranche login attempt"
	sealRenewal = "tranche session renewal"
)

// sealer encrypts and authenticates what is kept elsewhere. All nodes that have the same secret have the same key;
// without one the key is the process's own.
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
	return s.aead.Seal(nil, nil, plain, []byte(purpose)) //nolint:gosec // nonces are random, and the cipher's own
}

// open returns what was sealed; false when it was not sealed by this key, for this purpose.
func (s sealer) open(purpose string, sealed []byte) ([]byte, bool) {
	plain, err := s.aead.Open(nil, nil, sealed, []byte(purpose))
	return plain, err == nil
}
