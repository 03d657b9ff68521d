package api

import (
	"context"
	"net/http"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api/kernel"
)

// SessionDocument says who asks.
type SessionDocument struct {
	Authenticated bool        `json:"authenticated"`
	Auth          string      `json:"auth" enum:"off,on" doc:"off: nobody is asked who they are, and all are admins"`
	OIDC          bool        `json:"oidc" doc:"there is a login by a provider of identities, at /auth/oidc/login"`
	User          string      `json:"user" doc:"the actor in the audit log; empty for nobody"`
	Role          access.Role `json:"role" enum:"none,viewer,operator,admin"`
	ByProvider    bool        `json:"by_provider,omitempty" doc:"the login is by that provider, where it can begin anew"`
	ExpiresAt     *time.Time  `json:"expires_at,omitempty"`
}

// LogIn is a token to log in by.
type LogIn struct {
	Token string `json:"token" maxLength:"200" doc:"the secret of a token" format:"password"`
}

func (s *adminRoutes) registerSession(api huma.API) {
	look := kernel.ByAnyone(kernel.Get("get-session", "/session", "Who asks, and whether they are logged in"))
	kernel.Register(s.Kernel, api, look, s.getSession)
	huma.Register(api, kernel.Unstored(kernel.ByAnyone(huma.Operation{
		OperationID: "log-in", Method: http.MethodPost, Path: "/session", Summary: "Log a browser in, by a token",
		Description:  "Sets a cookie that only this server's pages can use. Throttled: 429 says when to try again.",
		MaxBodyBytes: maxLogIn, Middlewares: huma.Middlewares{s.tryLogIn},
	})), s.logIn)
	huma.Register(api, kernel.Unstored(kernel.ByAnyone(huma.Operation{
		OperationID: "log-out", Method: http.MethodDelete, Path: "/session", Summary: "Log a browser out",
	})), s.logOut)
}

func (s *adminRoutes) getSession(ctx context.Context, _ *struct{}) (SessionDocument, error) {
	return s.sessionOf(ctx), nil
}

func (s *adminRoutes) sessionOf(ctx context.Context) SessionDocument {
	if s.Access == nil {
		return SessionDocument{Authenticated: true, Auth: "off", User: kernel.Anonymous, Role: access.Admin}
	}
	who, ok := access.From(ctx)
	if !ok {
		return s.nobody()
	}
	return s.sessionFor(&who)
}

func (s *adminRoutes) nobody() SessionDocument {
	return SessionDocument{Auth: "on", OIDC: s.hasOIDC(), Role: access.None}
}

func (s *adminRoutes) sessionFor(who *access.Principal) SessionDocument {
	return SessionDocument{Authenticated: true, Auth: "on", OIDC: s.hasOIDC(), User: who.Name, Role: who.Role,
		ByProvider: who.Session && who.Token == nil, ExpiresAt: who.ExpiresAt}
}

// sessionAnswer is a session document that may come with a cookie.
type sessionAnswer struct {
	SetCookie []http.Cookie `header:"Set-Cookie"`
	Body      SessionDocument
}

type logInInput struct {
	kernel.Actor
	Body LogIn

	request *http.Request
}

// Resolve keeps the request: where it comes from counts.
func (in *logInInput) Resolve(ctx huma.Context) []error {
	in.request, _ = humago.Unwrap(ctx)
	return nil
}

const (
	// maxLogIn is how many bytes a login may have, and logInTime what they have to be there in.
	maxLogIn = 4 << 10
	// A login's body, as a whole; then 408.
	logInTime = 5 * time.Second
)

// tryLogIn counts a login before anything is read of it: who may not try has nothing to wait for.
func (s *adminRoutes) tryLogIn(hc huma.Context, next func(huma.Context)) {
	r, w := humago.Unwrap(hc)
	kernel.HurryBody(r, logInTime)
	if s.Access != nil {
		if err := s.Access.TryLogIn(s.CallerAddress(r)); err != nil {
			s.Deny(w, r, err)
			return
		}
	}
	next(hc)
}

func (s *adminRoutes) logIn(ctx context.Context, in *logInInput) (*sessionAnswer, error) {
	if s.Access == nil {
		return nil, s.Failure(ctx, errNoAuth)
	}
	cookie, who, err := s.Access.LogIn(ctx, s.CallerAddress(in.request), in.Body.Token)
	if err != nil {
		return nil, s.Failure(ctx, err)
	}
	return &sessionAnswer{SetCookie: []http.Cookie{s.cookie(cookie, who.ExpiresAt)}, Body: s.sessionFor(&who)}, nil
}

func (s *adminRoutes) logOut(ctx context.Context, _ *struct{ kernel.Actor }) (*sessionAnswer, error) {
	if s.Access == nil {
		return nil, s.Failure(ctx, errNoAuth)
	}
	if who, ok := access.From(ctx); ok {
		if err := s.Access.LogOut(ctx, who); err != nil {
			return nil, s.Failure(ctx, err)
		}
	}
	long := time.Unix(1, 0)
	return &sessionAnswer{SetCookie: []http.Cookie{s.cookie("", &long)}, Body: s.nobody()}, nil
}

var errNoAuth = kernel.Denied(http.StatusConflict,
	"this server asks nobody who they are: it was started without --auth on")

// cookie is for this server's pages only: no script reads it, and no other site's page makes a browser send it.
func (s *adminRoutes) cookie(value string, until *time.Time) http.Cookie {
	c := http.Cookie{ //nolint:gosec // it is Secure where there is TLS
		Name: s.CookieName(), Value: value, Path: "/", HttpOnly: true, Secure: s.config.SecureCookies,
		SameSite: http.SameSiteStrictMode,
	}
	if until != nil {
		c.Expires = *until
	}
	return c
}
