package api

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humago"
	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// SessionDocument describes the caller.
type SessionDocument struct {
	Authenticated bool        `json:"authenticated"`
	Auth          string      `json:"auth" enum:"off,on" doc:"off: no login; every caller is an admin"`
	OIDC          bool        `json:"oidc" doc:"there is a login by an identity provider, at /auth/oidc/login"`
	User          string      `json:"user" doc:"the actor in the audit log; empty for no one"`
	Role          access.Role `json:"role" enum:"none,watcher,viewer,operator,admin" doc:"in every namespace, and for all that belongs to none"`

	Grants map[string]access.Role `json:"grants,omitempty" doc:"further roles, by namespace"`

	ByProvider bool       `json:"by_provider,omitempty" doc:"the login is by that provider, where it can begin again"`
	ExpiresAt  *time.Time `json:"expires_at,omitempty"`

	Links map[string]string `json:"links,omitempty" doc:"URLs about a request, by name, with {run}, {slice} and {trace} (serve --link)"`
}

// LogIn is a token to log in with.
type LogIn struct {
	Token string `json:"token" maxLength:"200" doc:"the secret of a token" format:"password"`
}

func (s *adminRoutes) registerSession(api huma.API) {
	look := kernel.ByAnyone(kernel.Get("get-session", "/session", "The caller, and whether they are logged in"))
	kernel.Register(s.Kernel, api, look, s.getSession)
	kernel.RegisterAnswer(s.Kernel, api, kernel.Unstored(kernel.ByAnyone(huma.Operation{
		OperationID: "log-in", Method: http.MethodPost, Path: "/session", Summary: "Log a browser in, by a token",
		Description:  "Sets a cookie that only this server's pages can use. Throttled: 429 says when to try again.",
		MaxBodyBytes: maxLogIn, Middlewares: huma.Middlewares{s.tryLogIn},
	})), s.logIn)
	kernel.RegisterAnswer(s.Kernel, api, kernel.Unstored(kernel.ByAnyone(huma.Operation{
		OperationID: "log-out", Method: http.MethodDelete, Path: "/session", Summary: "Log a browser out",
	})), s.logOut)
}

func (s *adminRoutes) getSession(ctx context.Context, _ *struct{}) (SessionDocument, error) {
	return s.sessionOf(ctx), nil
}

func (s *adminRoutes) sessionOf(ctx context.Context) SessionDocument {
	if s.Access == nil {
		return SessionDocument{Authenticated: true, Auth: "off", User: kernel.Anonymous, Role: access.Admin, Links: s.config.Links}
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
	return SessionDocument{Authenticated: true, Auth: "on", OIDC: s.hasOIDC(), User: who.Name, Role: who.Role, Grants: who.Grants,
		ByProvider: who.Session && who.Token == nil, ExpiresAt: who.ExpiresAt, Links: s.config.Links}
}

type sessionAnswer struct {
	SetCookie []http.Cookie `header:"Set-Cookie"`
	Body      SessionDocument
}

type logInInput struct {
	kernel.Actor
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
		return nil, errNoAuth
	}
	cookie, who, err := s.Access.LogIn(ctx, s.CallerAddress(in.request), in.Body.Token)
	if err != nil {
		return nil, err
	}
	return &sessionAnswer{SetCookie: []http.Cookie{s.cookie(cookie, who.ExpiresAt)}, Body: s.sessionFor(&who)}, nil
}

func (s *adminRoutes) logOut(ctx context.Context, _ *struct{ kernel.Actor }) (*sessionAnswer, error) {
	if s.Access == nil {
		return nil, errNoAuth
	}
	if who, ok := access.From(ctx); ok {
		if err := s.Access.LogOut(ctx, who); err != nil {
			return nil, err
		}
	}
	long := time.Unix(1, 0)
	return &sessionAnswer{SetCookie: []http.Cookie{s.cookie("", &long)}, Body: s.nobody()}, nil
}

var errNoAuth = kernel.Denied(http.StatusConflict,
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
	list := kernel.Get("list-sessions", "/sessions", "List browser sessions, newest first")
	kernel.Register(s.Kernel, api, kernel.AboutCredentials(kernel.ByAdmin(list)), s.listSessions)
	revoke := kernel.Post("revoke-sessions", "/sessions/revoke",
		"End all sessions of a user",
		"Within 5 seconds, on all nodes. Who still has a token, or an account at the identity provider "+
			"that has a role here, can log in again: take that away first.")
	kernel.Register(s.Kernel, api, kernel.AboutCredentials(kernel.ByAdmin(revoke)), s.revokeSessions)
}

func (s *adminRoutes) listSessions(ctx context.Context, _ *struct{}) (SessionList, error) {
	all, err := identity.New(s.Store).WebSessions(ctx)
	return SessionList{Sessions: all}, err
}

type revokeSessionsInput struct {
	kernel.Actor
	Body RevokeSessions
}

func (s *adminRoutes) revokeSessions(ctx context.Context, in *revokeSessionsInput) (RevokedSessions, error) {
	ended, err := identity.New(s.Store).RevokeWebSessions(ctx, in.Body.User, in.Name)
	if err == nil && s.Access != nil {
		s.Access.Forget()
	}
	return RevokedSessions{User: in.Body.User, Sessions: ended}, kernel.Seen(err, seeSessions)
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

func (s *adminRoutes) RegisterOIDC(mux *kernel.RouteMux) {
	if s.hasOIDC() {
		mux.HandleFunc("GET "+kernel.OIDCLogin, s.beginOIDC)
		mux.HandleFunc("GET "+kernel.OIDCCallback, s.endOIDC)
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
	login, err := s.config.OIDC.Unseal(cookieIn(r, name), query.Get("state"))
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
		return access.Identity{}, &access.DeniedError{Why: "the identity provider says " +
			kernel.Cut(says, kernel.MaxEchoed)}
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

func cookieIn(r *http.Request, name string) string {
	cookie, err := r.Cookie(name)
	if err != nil {
		return ""
	}
	return cookie.Value
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

const (
	seeTokens = "tranche token list"
	// The maximum life of a token that expires.
	maxTokenLife = 10 * 365 * 24 * time.Hour
)

// TokenList lists all tokens.
type TokenList struct {
	Tokens []identity.TokenView `json:"tokens"`
}

// TokenSettings describes a token to create.
type TokenSettings struct {
	Name      string                 `json:"name" minLength:"1" maxLength:"100" doc:"whose it is, for the audit log" example:"ci"`
	Role      access.Role            `json:"role" enum:"none,watcher,viewer,operator,admin" doc:"in every namespace, and for all that belongs to none"`
	Grants    map[string]access.Role `json:"grants,omitempty" doc:"further roles, by namespace" example:"{\"team-a\":\"operator\"}"`
	ExpiresIn string                 `json:"expires_in,omitempty" doc:"its life; absent: as long as the server allows" example:"720h"`
	Networks  []string               `json:"networks,omitempty" doc:"where it may be used from; absent: anywhere" example:"[\"10.0.0.0/8\"]" maxItems:"100"`
}

// TokenRotation says how long both tokens are good.
type TokenRotation struct {
	Overlap string `json:"overlap,omitempty" doc:"how long the old token stays valid; 24h by default" example:"24h"`
}

// CreatedToken is a new token. No other answer ever has its secret.
type CreatedToken struct {
	identity.TokenView

	Secret string `json:"secret" doc:"shown this once" format:"password"`
}

func (s *adminRoutes) registerTokens(api huma.API) {
	list := kernel.Get("list-tokens", "/tokens", "List tokens, newest first, without their secrets")
	kernel.Register(s.Kernel, api, kernel.AboutCredentials(kernel.ByAdmin(list)), s.listTokens)
	create := kernel.Post("create-token", "/tokens", "Create a token",
		"The answer holds its secret, which is kept nowhere: there is no other way to learn it.")
	kernel.Register(s.Kernel, api, kernel.FourEyes("tokens", kernel.Unstored(kernel.AboutCredentials(kernel.ByAdmin(create)))), s.createToken)
	rotate := kernel.Post("rotate-token", "/tokens/{id}/rotate", "Rotate a token",
		"The new token has the same name, role, networks and lifetime. The old one ends after the overlap.")
	kernel.Register(s.Kernel, api, kernel.Previewed(kernel.FourEyes("tokens",
		kernel.Unstored(kernel.AboutCredentials(kernel.ByAdmin(rotate)))), pinToken(s.Store)), s.rotateToken)
	revoke := kernel.Post("revoke-token", "/tokens/{id}/revoke", "Revoke a token",
		"It does nothing more within 5 seconds, on all nodes, and the sessions that it began have ended. "+
			"Requests of its that are in progress are interrupted, streams too.")
	kernel.Register(s.Kernel, api, kernel.AboutCredentials(kernel.ByAdmin(revoke)), s.revokeToken)
}

func (s *adminRoutes) listTokens(ctx context.Context, _ *struct{}) (TokenList, error) {
	all, err := identity.New(s.Store).Tokens(ctx)
	return TokenList{Tokens: all}, err
}

type createTokenInput struct {
	kernel.Actor
	Body TokenSettings
}

// Check also refuses what a second administrator could only reject.
func (in *createTokenInput) Check() error {
	_, err := in.Body.New("")
	return cmp.Or(in.Actor.Check(), CheckTokenName(in.Body.Name), err)
}

func (s *adminRoutes) createToken(ctx context.Context, in *createTokenInput) (CreatedToken, error) {
	none := CreatedToken{}
	secret := access.NewSecret()
	n, err := in.Body.New(secret)
	if err == nil {
		n.Makers, err = s.Eyes(ctx, in.Name)
	}
	if err != nil {
		return none, err
	}
	if most := s.config.TokenMaxAge; most > 0 {
		if n.ExpiresIn = cmp.Or(n.ExpiresIn, most); n.ExpiresIn > most {
			return none, kernel.BadInput(fmt.Sprintf("expires_in is %s; this server allows tokens of up to %s (--token-max-age)",
				n.ExpiresIn, most))
		}
	}
	made, err := identity.New(s.Store).CreateToken(ctx, n, in.Name)
	if err != nil {
		return none, err
	}
	return CreatedToken{TokenView: made, Secret: secret}, nil
}

// New is the token to be created, with a secret.
func (t *TokenSettings) New(secret string) (identity.NewToken, error) {
	n := identity.NewToken{Name: t.Name, Role: string(t.Role), Hash: access.HashOf(secret), Grants: map[string]string{}}
	for namespace, role := range t.Grants {
		if _, err := access.ParseRole(string(role)); err != nil {
			return n, kernel.BadInput("grants: " + kernel.Cut(err.Error(), 2*kernel.MaxEchoed))
		}
		n.Grants[namespace] = string(role)
	}
	if t.Role == access.None && len(t.Grants) == 0 {
		return n, kernel.BadInput("role is none, and there are no grants; give a role, or a role in a namespace")
	}
	for _, text := range t.Networks {
		network, err := netip.ParsePrefix(text)
		if err != nil {
			return n, kernel.BadInput("networks: " + strconv.Quote(kernel.Cut(text, kernel.MaxEchoed)) +
				" is not an address and bits, like 10.0.0.0/8 or 2001:db8::1/128")
		}
		n.Networks = append(n.Networks, network.Masked().String())
	}
	var err error
	n.ExpiresIn, err = t.Life()
	return n, err
}

const (
	// DefaultOverlap is how long a rotated token stays valid.
	DefaultOverlap = 24 * time.Hour
	maxOverlap     = 30 * 24 * time.Hour
)

// CheckOverlap refuses an overlap out of range.
func CheckOverlap(overlap time.Duration) error {
	if overlap < 0 || overlap > maxOverlap {
		return kernel.BadInput(fmt.Sprintf("overlap is %s; it must be between 0s and %s", overlap, maxOverlap))
	}
	return nil
}

type rotateTokenInput struct {
	kernel.Actor
	ID   string `path:"id" doc:"an id, the beginning of one (4 digits or more), or the name of the only such token"`
	Body TokenRotation
}

// Pinned is the ID after pinToken.
func (in *rotateTokenInput) Pinned() string { return in.ID }

func pinToken(db *database.DB) func(context.Context, *rotateTokenInput) (any, error) {
	return func(ctx context.Context, in *rotateTokenInput) (any, error) {
		token, err := identity.New(db).Token(ctx, in.ID)
		if err != nil {
			return nil, kernel.Seen(err, seeTokens)
		}
		in.ID, token.LastUsedAt = token.ID.String(), nil
		return token, nil
	}
}

func (s *adminRoutes) rotateToken(ctx context.Context, in *rotateTokenInput) (CreatedToken, error) {
	overlap, err := time.ParseDuration(cmp.Or(in.Body.Overlap, DefaultOverlap.String()))
	if err != nil {
		err = kernel.BadInput("overlap is " + strconv.Quote(kernel.Cut(in.Body.Overlap, kernel.MaxEchoed)) +
			"; write it like 24h")
	}
	if err := cmp.Or(err, CheckOverlap(overlap)); err != nil {
		return CreatedToken{}, err
	}
	makers, err := s.Eyes(ctx, in.Name)
	if err != nil {
		return CreatedToken{}, err
	}
	secret := access.NewSecret()
	made, err := identity.New(s.Store).RotateToken(ctx, in.ID, access.HashOf(secret), overlap, s.config.TokenMaxAge, in.Name,
		makers)
	if err == nil && s.Access != nil {
		s.Access.Forget()
	}
	return CreatedToken{TokenView: made, Secret: secret}, kernel.Seen(err, seeTokens)
}

// CheckTokenName refuses names that would mislead readers of the audit log.
func CheckTokenName(name string) error {
	if err := access.CheckTokenName(name); err != nil {
		return kernel.BadInput("name: " + kernel.Cut(err.Error(), 2*kernel.MaxEchoed))
	}
	return nil
}

// Life is how long the token is valid; 0: until it is revoked.
func (t *TokenSettings) Life() (time.Duration, error) {
	if t.ExpiresIn == "" {
		return 0, nil
	}
	life, err := time.ParseDuration(t.ExpiresIn)
	if err != nil {
		return 0, kernel.BadInput("expires_in is " + strconv.Quote(kernel.Cut(t.ExpiresIn, kernel.MaxEchoed)) +
			"; write it like 720h or 30m")
	}
	return life, CheckTokenLife(life)
}

// CheckTokenLife refuses a life out of range.
func CheckTokenLife(life time.Duration) error {
	if life < time.Second || life > maxTokenLife {
		return kernel.BadInput(fmt.Sprintf("expires_in is %s; it must be between 1s and %s (ten years); leave it out for a "+
			"token that is good until it is revoked", life, maxTokenLife))
	}
	return nil
}

type revokeTokenInput struct {
	kernel.Actor
	ID string `path:"id" doc:"an id, the beginning of one (4 digits or more), or the name of the only such token"`
}

func (s *adminRoutes) revokeToken(ctx context.Context, in *revokeTokenInput) (identity.TokenView, error) {
	gone, err := identity.New(s.Store).RevokeToken(ctx, in.ID, in.Name)
	if err == nil && s.Access != nil {
		s.Access.Forget()
	}
	return gone, kernel.Seen(err, seeTokens)
}
