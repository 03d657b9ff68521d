package access

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// TryLogIn counts a login by a token, or returns a ThrottledError. It comes before anything is read of what is sent.
func (g *Gate) TryLogIn(address netip.Addr) error {
	return g.throttled(address, byToken, g.throttle.try(address))
}

// LogIn begins a web session for the holder of a token, and returns the cookie's secret. Errors are those of Token.
func (g *Gate) LogIn(ctx context.Context, address netip.Addr, secret string) (cookie string, p Principal, err error) {
	who, err := g.token(ctx, address, secret)
	if err != nil {
		return "", Principal{}, err
	}
	return g.begin(ctx, identity.NewWebSession{Token: who.Token, Life: g.config.SessionLife})
}

// TryProvider counts a login that begins at a provider, or returns a ThrottledError. It costs next to nothing, so there
// is no bound in all: nobody could keep others from logging in again.
func (g *Gate) TryProvider(address netip.Addr) error {
	return g.throttled(address, byProvider, g.begins.try(address))
}

// TryWayBack counts a way back from a provider that may be good: the provider is asked about each.
func (g *Gate) TryWayBack(address netip.Addr) error {
	return g.throttled(address, byProvider, g.ways.try(address))
}

// RefuseWayBack counts one that is not, and notes it as a login that failed. It returns a ThrottledError when there
// were too many from the address.
func (g *Gate) RefuseWayBack(address netip.Addr, why error) error {
	g.FailedProvider(address, why)
	if g.unknown.try(address) != nil {
		return g.unknown.over(address)
	}
	return nil
}

// LogInAs begins a web session for somebody whom a provider of identities vouches for. It lasts for as long as the
// provider can be asked whether it still does; where it cannot be, until it is to log in again.
func (g *Gate) LogInAs(ctx context.Context, who Identity) (cookie string, p Principal, err error) {
	n := identity.NewWebSession{User: who.Name, Role: string(who.Role), Subject: who.Subject, Renewal: who.Renewal,
		Life: g.config.SessionLife}
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
	if errors.Is(err, identity.ErrNoCredential) {
		return "", Principal{}, &RefusedError{State: identity.TokenRevoked}
	}
	if err != nil {
		return "", Principal{}, err
	}
	if p, err = principalOf(&kept, true, asked); err != nil {
		return "", Principal{}, err
	}
	g.remember(&p) // its first request is not to be one of a stranger
	return cookie, p, nil
}

// LogOut ends the web session of p. One that has ended already is no error.
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
		g.end(p.hash, w, ErrRevoked) // its open pages; this request is done with what it had to do
	}
	return nil
}
