package api

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// SessionDocument describes the caller.
type SessionDocument struct {
	Authenticated bool        `json:"authenticated"`
	Auth          string      `json:"auth" enum:"off,on" doc:"off: no login; every caller is an admin"`
	OIDC          bool        `json:"oidc" doc:"there is a login by an identity provider, at /auth/oidc/login"`
	User          string      `json:"user" doc:"the actor in the audit log; empty for no one"`
	Role          access.Role `json:"role" enum:"none,watcher,viewer,operator,admin" doc:"in every namespace, and for all that belongs to none"`

	Grants map[string]string `json:"grants,omitempty" doc:"further roles, by namespace"`

	ByProvider bool       `json:"by_provider,omitempty" doc:"the login is by that provider, where it can begin again"`
	ExpiresAt  *time.Time `json:"expires_at,omitempty"`

	Links map[string]string `json:"links,omitempty" doc:"URLs about a request, by name, with {run}, {slice} and {trace} (serve --link)"`
}

// LogIn is a token to log in with.
type LogIn struct {
	Token string `json:"token" maxLength:"200" doc:"the secret of a token" format:"password"`
}

func (s *adminRoutes) registerSession(api huma.API) {
	look := apicore.ByAnyone(apicore.Get("get-session", "/session", "The caller, and whether they are logged in"))
	apicore.Register(s.Core, api, look, s.getSession)
	apicore.RegisterAnswer(s.Core, api, apicore.Unstored(apicore.ByAnyone(huma.Operation{
		OperationID: "log-in", Method: http.MethodPost, Path: "/session", Summary: "Log a browser in, by a token",
		Description:  "Sets a cookie that only this server's pages can use. Throttled: 429 says when to try again.",
		MaxBodyBytes: maxLogIn, Middlewares: huma.Middlewares{s.tryLogIn},
	})), s.logIn)
	apicore.RegisterAnswer(s.Core, api, apicore.Unstored(apicore.ByAnyone(huma.Operation{
		OperationID: "log-out", Method: http.MethodDelete, Path: "/session", Summary: "Log a browser out",
	})), s.logOut)
}

func (s *adminRoutes) getSession(ctx context.Context, _ *struct{}) (SessionDocument, error) {
	return s.sessionOf(ctx), nil
}

func (s *adminRoutes) sessionOf(ctx context.Context) SessionDocument {
	if s.Access == nil {
		return SessionDocument{Authenticated: true, Auth: "off", User: apicore.Anonymous, Role: access.Admin,
			Links: s.config.Links}
	}
	who, ok := access.From(ctx)
	if !ok {
		return s.anonymous()
	}
	return s.sessionFor(&who)
}

func (s *adminRoutes) anonymous() SessionDocument {
	return SessionDocument{Auth: "on", OIDC: s.hasOIDC(), Role: access.None}
}

func (s *adminRoutes) sessionFor(who *access.Principal) SessionDocument {
	return SessionDocument{Authenticated: true, Auth: "on", OIDC: s.hasOIDC(), User: who.Name, Role: who.Role,
		Grants: who.Grants, ByProvider: who.Session && who.Token == nil, ExpiresAt: who.ExpiresAt, Links: s.config.Links}
}

type sessionAnswer struct {
	SetCookie []http.Cookie `header:"Set-Cookie"`
	Body      SessionDocument
}

type logInInput struct {
	apicore.Actor
	Body LogIn

	request *http.Request
}

func (in *logInInput) Resolve(ctx huma.Context) []error {
	in.request, _ = humago.Unwrap(ctx)
	return nil
}

const (
	// maxLogIn limits the bytes of a login.
	maxLogIn = 4 << 10
	// logInTime limits the time for a login's whole body; then 408.
	logInTime = 5 * time.Second
)

// tryLogIn counts a login before its body is read: a throttled caller is refused immediately.
func (s *adminRoutes) tryLogIn(hc huma.Context, next func(huma.Context)) {
	r, w := humago.Unwrap(hc)
	apicore.HurryBody(r, logInTime)
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
		return nil, errNoAuth
	}
	cookie, who, err := s.Access.LogIn(ctx, s.CallerAddress(in.request), in.Body.Token)
	if err != nil {
		return nil, err
	}
	return &sessionAnswer{SetCookie: []http.Cookie{s.cookie(cookie, who.ExpiresAt)}, Body: s.sessionFor(&who)}, nil
}

func (s *adminRoutes) logOut(ctx context.Context, _ *struct{ apicore.Actor }) (*sessionAnswer, error) {
	if s.Access == nil {
		return nil, errNoAuth
	}
	if who, ok := access.From(ctx); ok {
		if err := s.Access.LogOut(ctx, who); err != nil {
			return nil, err
		}
	}
	long := time.Unix(1, 0)
	return &sessionAnswer{SetCookie: []http.Cookie{s.cookie("", &long)}, Body: s.anonymous()}, nil
}

var errNoAuth = apicore.Denied(http.StatusConflict,
	"this server asks no one who they are: it was started without --auth on")

// cookie returns a cookie for this server's pages only: scripts cannot read it and other sites cannot make browsers
// send it.
func (s *adminRoutes) cookie(value string, until *time.Time) http.Cookie {
	c := http.Cookie{ //nolint:gosec // Secure wherever there is TLS
		Name: s.CookieName(), Value: value, Path: "/", HttpOnly: true, Secure: s.config.SecureCookies,
		SameSite: http.SameSiteStrictMode,
	}
	if until != nil {
		c.Expires = *until
	}
	return c
}

const seeSessions = "tranche session list"

// SessionList lists the browser sessions.
type SessionList struct {
	Sessions []identity.WebSessionView `json:"sessions" nullable:"false"`
}

// RevokeSessions names the user whose sessions end.
type RevokeSessions struct {
	User string `json:"user" minLength:"1" maxLength:"200" doc:"as the list of sessions and the audit log call them"`
}

// RevokedSessions counts the ended sessions.
type RevokedSessions struct {
	User     string `json:"user"`
	Sessions int64  `json:"sessions" doc:"how many have ended"`
}

func (s *adminRoutes) registerSessions(api huma.API) {
	list := apicore.Get("list-sessions", "/sessions", "List browser sessions, newest first")
	apicore.Register(s.Core, api, apicore.AboutCredentials(apicore.ByAdmin(list)), s.listSessions)
	revoke := apicore.Post("revoke-sessions", "/sessions/revoke",
		"End all sessions of a user",
		"Takes effect within 5 seconds on all nodes. A user with a token, or with an account at the identity "+
			"provider that has a role here, can log in again: revoke that first.")
	apicore.Register(s.Core, api, apicore.AboutCredentials(apicore.ByAdmin(revoke)), s.revokeSessions)
}

func (s *adminRoutes) listSessions(ctx context.Context, _ *struct{}) (SessionList, error) {
	all, err := identity.New(s.Store).WebSessions(ctx)
	return SessionList{Sessions: all}, err
}

type revokeSessionsInput struct {
	apicore.Actor
	Body RevokeSessions
}

func (s *adminRoutes) revokeSessions(ctx context.Context, in *revokeSessionsInput) (RevokedSessions, error) {
	ended, err := identity.New(s.Store).RevokeWebSessions(ctx, in.Body.User, in.Name)
	if err == nil && s.Access != nil {
		s.Access.Forget()
	}
	return RevokedSessions{User: in.Body.User, Sessions: ended}, apicore.Seen(err, seeSessions)
}

// Name prefixes of cookies for logins in progress. A hash of the login's state follows, so each login has its own
// cookie.
const (
	attemptCookie       = "tranche_login_"
	secureAttemptCookie = "__Host-" + attemptCookie
)

// MaxAttempts limits a browser's logins in progress, as when all its tabs log in again. A cookie may have 2 KB, and
// proxies limit a request's size.
const MaxAttempts = 4

func (s *adminRoutes) hasOIDC() bool { return s.Access != nil && s.config.OIDC != nil }

func (s *adminRoutes) RegisterOIDC(mux *apicore.RouteMux) {
	if s.hasOIDC() {
		mux.HandleFunc("GET "+apicore.OIDCLogin, s.beginOIDC)
		mux.HandleFunc("GET "+apicore.OIDCCallback, s.endOIDC)
	}
}

func (s *adminRoutes) beginOIDC(w http.ResponseWriter, r *http.Request) {
	if err := s.Access.TryProvider(s.CallerAddress(r)); err != nil {
		s.Deny(w, r, err)
		return
	}
	login := access.NewAttempt(ownPage(r.URL.Query().Get("next")))
	to, err := s.config.OIDC.LoginURL(r.Context(), &login)
	if err != nil {
		s.denyOIDC(w, r, err)
		return
	}
	sealed, err := s.config.OIDC.Seal(&login)
	if err != nil {
		s.Deny(w, r, err)
		return
	}
	s.giveUpOldest(w, r)
	http.SetCookie(w, s.attemptCookie(s.attemptName(login.State), sealed, int(access.AttemptTime.Seconds())))
	http.Redirect(w, r, to, http.StatusSeeOther) //nolint:gosec // the provider, with our parameters
}

// ownPage returns a path on this server, and / for any other link.
func ownPage(path string) string {
	if !strings.HasPrefix(path, "/") || strings.ContainsAny(path, "\\\r\n\t") || strings.HasPrefix(path, "//") {
		return "/"
	}
	return path
}

func (s *adminRoutes) below(path string) string {
	if base := s.config.BasePath; !strings.HasPrefix(path, base+"/") {
		return base + path
	}
	return path
}

// endOIDC begins the session. It is the only GET that changes something, once and only for the browser that began the
// login. Without a begun login it costs no more than checking the cookie.
func (s *adminRoutes) endOIDC(w http.ResponseWriter, r *http.Request) {
	from, query := s.CallerAddress(r), r.URL.Query()
	name := s.attemptName(query.Get("state"))
	sealed := ""
	if cookie, err := r.Cookie(name); err == nil {
		sealed = cookie.Value
	}
	login, err := s.config.OIDC.Unseal(sealed, query.Get("state"))
	if err != nil {
		s.Deny(w, r, cmp.Or(s.Access.RefuseWayBack(from, err), err))
		return
	}
	if err := s.Access.TryWayBack(from); err != nil {
		s.Deny(w, r, err)
		return
	}
	http.SetCookie(w, s.attemptCookie(name, "", -1))
	who, err := s.vouched(r, &login)
	if err != nil {
		s.Access.FailedProvider(from, err)
		s.denyOIDC(w, r, err)
		return
	}
	secret, principal, err := s.Access.LogInAs(r.Context(), who)
	if err != nil {
		s.Deny(w, r, err)
		return
	}
	cookie := s.cookie(secret, principal.ExpiresAt)
	http.SetCookie(w, &cookie)
	http.Redirect(w, r, s.below(ownPage(login.Next)), http.StatusSeeOther)
}

func (s *adminRoutes) vouched(r *http.Request, login *access.Attempt) (access.Identity, error) {
	query := r.URL.Query()
	if says := query.Get("error"); says != "" {
		return access.Identity{}, &access.DeniedError{Why: "the identity provider says " + apicore.Echo(says)}
	}
	return s.config.OIDC.Finish(r.Context(), login, query.Get("code"))
}

func (s *adminRoutes) attemptName(state string) string {
	hash := access.HashOf(state)
	return s.attemptPrefix() + hex.EncodeToString(hash[:8])
}

func (s *adminRoutes) attemptPrefix() string {
	if s.config.SecureCookies {
		return secureAttemptCookie
	}
	return attemptCookie
}

// giveUpOldest makes room in the browser for another login in progress. Browsers send cookies oldest first (RFC 6265,
// 5.4).
func (s *adminRoutes) giveUpOldest(w http.ResponseWriter, r *http.Request) {
	var names []string
	for _, c := range r.Cookies() {
		if strings.HasPrefix(c.Name, s.attemptPrefix()) {
			names = append(names, c.Name)
		}
	}
	for len(names) >= MaxAttempts {
		http.SetCookie(w, s.attemptCookie(names[0], "", -1))
		names = names[1:]
	}
}

// denyOIDC logs errors of the provider: the person logging in cannot fix them.
func (s *adminRoutes) denyOIDC(w http.ResponseWriter, r *http.Request, err error) {
	if bad, ok := errors.AsType[*access.ProviderError](err); ok && r.Context().Err() == nil {
		why := access.Redact(bad.Err.Error())
		s.Log.Warn("the identity provider does not answer as it should", zap.String("error", why))
	}
	s.Deny(w, r, err)
}

// attemptCookie is Lax: the provider redirects back here, which Strict would treat as cross-site.
func (s *adminRoutes) attemptCookie(name, value string, seconds int) *http.Cookie {
	return &http.Cookie{ //nolint:gosec // Secure wherever there is TLS
		Name: name, Value: value, Path: "/", HttpOnly: true, Secure: s.config.SecureCookies, MaxAge: seconds,
		SameSite: http.SameSiteLaxMode,
	}
}
