package access

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// TryLogIn counts a login by token, or returns a ThrottledError. It runs before the body is read.
func (g *Gate) TryLogIn(address netip.Addr) error {
	return g.throttled(address, byToken, g.throttle.try(address))
}

// LogIn begins a web session for the holder of a token and returns the cookie's secret. Errors are those of Token.
func (g *Gate) LogIn(ctx context.Context, address netip.Addr, secret string) (cookie string, p Principal, err error) {
	who, err := g.token(ctx, address, secret)
	if err != nil {
		return "", Principal{}, err
	}
	return g.begin(ctx, identity.NewWebSession{Token: who.Token, Life: DefaultSessionLife})
}

// TryProvider counts a login started at a provider, or returns a ThrottledError. It costs almost nothing, so there is
// no total limit: an attacker could otherwise block all logins.
func (g *Gate) TryProvider(address netip.Addr) error {
	return g.throttled(address, byProvider, g.begins.try(address))
}

// TryWayBack counts a possibly valid OIDC callback, for each of which the provider is called.
func (g *Gate) TryWayBack(address netip.Addr) error {
	return g.throttled(address, byProvider, g.ways.try(address))
}

// RefuseWayBack counts an invalid OIDC callback and records a failed login. It returns a ThrottledError if the
// address had too many.
func (g *Gate) RefuseWayBack(address netip.Addr, why error) error {
	g.FailedProvider(address, why)
	if g.unknown.try(address) != nil {
		return g.unknown.over(address)
	}
	return nil
}

// LogInAs begins a web session for an identity from a provider. It lasts as long as the provider confirms the
// identity; if it cannot be asked again, until ProviderTime.
func (g *Gate) LogInAs(ctx context.Context, who Identity) (cookie string, p Principal, err error) {
	n := identity.NewWebSession{User: who.Name, Role: string(who.Role), Subject: who.Subject, Renewal: who.Renewal,
		Grants: who.Grants, Life: DefaultSessionLife}
	if who.Renewal == nil {
		n.Life = min(n.Life, identity.ProviderTime)
	}
	return g.begin(ctx, n)
}

func (g *Gate) begin(ctx context.Context, n identity.NewWebSession) (cookie string, p Principal, err error) {
	cookie = newCookie()
	n.Hash = HashOf(cookie)
	asked := time.Now()
	kept, err := g.store.BeginWebSession(database.ForCredentials(ctx), n)
	switch {
	case errors.Is(err, identity.ErrNoCredential) && n.Token == nil:
		return "", Principal{}, &DeniedError{Why: n.User +
			" is also the name of a token, and names in the audit log must be " +
			"unique; ask an admin to revoke it: tranche token revoke"}
	case errors.Is(err, identity.ErrNoCredential):
		return "", Principal{}, &RefusedError{State: identity.TokenRevoked}
	}
	if err != nil {
		return "", Principal{}, err
	}
	if p, err = principalOf(&kept, true, asked); err != nil {
		return "", Principal{}, err
	}
	g.remember(&p) // its first request must not count as unknown
	return cookie, p, nil
}

// LogOut ends the web session of p. An already ended one is not an error.
func (g *Gate) LogOut(ctx context.Context, p Principal) error {
	if !p.Session {
		return nil
	}
	err := g.store.EndWebSession(database.ForCredentials(ctx), p.hash)
	if err != nil && !errors.Is(err, identity.ErrNoCredential) {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.trusted, p.hash)
	delete(g.known, p.hash)
	if w := g.under.by[p.hash]; w != nil {
		g.end(p.hash, w, ErrRevoked) // ends its open pages; this request is done
	}
	return nil
}

// BusyError is returned to a caller with too many requests in progress.
type BusyError struct {
	All             bool // the total limit is reached
	Unauthenticated bool // the limit on an address's unauthenticated requests is reached
	Limit           int
}

func (e *BusyError) Error() string {
	if e.Unauthenticated {
		return fmt.Sprintf("%d requests from this address, by no one who has logged in, are in progress, which is as many "+
			"as there may be; try again soon, or send a token that is good", e.Limit)
	}
	if e.All {
		return fmt.Sprintf("%d requests that read much are in progress, which is as many as there may be; try again soon",
			e.Limit)
	}
	return fmt.Sprintf("you have %d requests in progress that read much, which is as many as one may have; "+
		"wait until one ends", e.Limit)
}

// Slots limits concurrent requests of a kind, per user and in total.
type Slots struct {
	each, all int

	mu    sync.Mutex
	taken map[string]int
	sum   int
	freed chan struct{} // closed when a slot is freed
}

// NewSlots returns slots with a limit per user and a total limit.
func NewSlots(each, all int) *Slots {
	return &Slots{each: each, all: all, taken: map[string]int{}, freed: make(chan struct{})}
}

// Await takes a slot for a user until giveBack is called, waiting up to patience; then it returns a BusyError.
func (s *Slots) Await(ctx context.Context, user string, patience time.Duration) (giveBack func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		s.mu.Lock()
		freed := s.freed
		s.mu.Unlock()
		giveBack, err = s.Take(user)
		if err == nil {
			return giveBack, nil
		}
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, err
		}
	}
}

// Take takes a slot for a user until giveBack is called, or returns a BusyError.
func (s *Slots) Take(user string) (giveBack func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.sum >= s.all:
		return nil, &BusyError{All: true, Limit: s.all}
	case s.taken[user] >= s.each:
		return nil, &BusyError{Limit: s.each}
	}
	s.sum++
	s.taken[user]++
	return sync.OnceFunc(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.sum--
		close(s.freed)
		s.freed = make(chan struct{})
		if s.taken[user]--; s.taken[user] == 0 {
			delete(s.taken, user)
		}
	}), nil
}
