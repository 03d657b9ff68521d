package access

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/tranchehq/tranche/workqueue"
)

// LogIn begins a web session for the holder of a token, and returns the cookie's secret. Errors are those of Token, and
// a ThrottledError.
func (g *Gate) LogIn(ctx context.Context, address netip.Addr, secret string) (cookie string, p Principal, err error) {
	if err := g.throttle.try(address); err != nil {
		return "", Principal{}, err
	}
	who, err := g.Token(ctx, secret)
	if err != nil {
		return "", Principal{}, err
	}
	return g.begin(ctx, workqueue.NewWebSession{Token: who.Token})
}

// Try counts a login that begins elsewhere, or returns a ThrottledError.
func (g *Gate) Try(address netip.Addr) error { return g.throttle.try(address) }

// LogInAs begins a web session for somebody whom a provider of identities vouches for.
func (g *Gate) LogInAs(ctx context.Context, who Identity) (cookie string, p Principal, err error) {
	return g.begin(ctx, workqueue.NewWebSession{User: who.Name, Role: string(who.Role)})
}

func (g *Gate) begin(ctx context.Context, n workqueue.NewWebSession) (cookie string, p Principal, err error) {
	cookie = newCookie()
	n.Hash, n.Life = HashOf(cookie), g.config.SessionLife
	asked := time.Now()
	kept, err := g.store.BeginWebSession(workqueue.ForCredentials(ctx), n)
	if errors.Is(err, workqueue.ErrNoCredential) {
		return "", Principal{}, &RefusedError{State: workqueue.TokenRevoked}
	}
	if err != nil {
		return "", Principal{}, err
	}
	p, err = principalOf(&kept, true, asked)
	return cookie, p, err
}

// LogOut ends the web session of p. One that has ended already is no error.
func (g *Gate) LogOut(ctx context.Context, p Principal) error {
	if !p.Session {
		return nil
	}
	err := g.store.EndWebSession(workqueue.ForCredentials(ctx), p.hash)
	if err != nil && !errors.Is(err, workqueue.ErrNoCredential) {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.trusted, p.hash)
	if w := g.under.by[p.hash]; w != nil {
		g.end(p.hash, w, ErrRevoked) // its open pages; this request is done with what it had to do
	}
	return nil
}
