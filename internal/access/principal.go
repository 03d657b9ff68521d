package access

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"time"

	"github.com/tranchehq/tranche/workqueue/identity"
)

// RevocationTime is how long after its end a token or a session may have an effect, at the most and on any node.
const RevocationTime = 5 * time.Second

var (
	// ErrNobody is returned for a request that does not say who makes it.
	ErrNobody = errors.New("nobody is logged in")
	// ErrRevoked is the cause by which the context of a request ends whose token was revoked, or has expired, or whose
	// session has ended.
	ErrRevoked = errors.New("the token was revoked or has expired, or the session has ended")
	// ErrUnchecked is that cause when it could not be found out for too long whether it may go on.
	ErrUnchecked = errors.New("it cannot be found out whether the token is still good")
)

// RefusedError is returned for a secret that is of no use.
type RefusedError struct {
	Session bool
	State   identity.TokenState // empty: nobody knows it
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
	Token     *identity.TokenID // nil: somebody else vouched for them
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

// From returns who makes the request; false when nobody is known, as where no login is needed.
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
