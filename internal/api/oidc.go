package api

import (
	"cmp"
	"encoding/hex"
	"errors"
	"net/http"
	"strings"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api/kernel"
)

// Names of the cookies of logins under way begin so; a hash of the login's state follows, so that each has its own.
const (
	attemptCookie       = "tranche_login_"
	secureAttemptCookie = "__Host-" + attemptCookie
)

// MaxAttempts is how many logins a browser may have under way, as when all its tabs have to log in again at once. More
// would make its requests larger than proxies take: a cookie may have 2 KB.
const MaxAttempts = 4

// hasOIDC reports whether there is a login by a provider of identities.
func (s *adminRoutes) hasOIDC() bool { return s.Access != nil && s.config.OIDC != nil }

// RegisterOIDC adds the routes of a login by a provider of identities, which are no operations.
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
	http.Redirect(w, r, to, http.StatusSeeOther) //nolint:gosec // to the provider, with what is ours
}

// ownPage is a page of this server, whatever somebody wrote into a link.
func ownPage(path string) string {
	if !strings.HasPrefix(path, "/") || strings.ContainsAny(path, "\\\r\n\t") || strings.HasPrefix(path, "//") {
		return "/"
	}
	return path
}

// endOIDC begins the session. It is the one GET that changes something, and does so only for the browser in which the
// login began, and once. Who did not begin a login here costs no more than the look at his cookie.
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
	http.Redirect(w, r, ownPage(login.Next), http.StatusSeeOther)
}

// vouched asks the provider for whom it vouches.
func (s *adminRoutes) vouched(r *http.Request, login *access.Attempt) (access.Identity, error) {
	query := r.URL.Query()
	if says := query.Get("error"); says != "" {
		return access.Identity{}, &access.DeniedError{Why: "the provider of identities says " +
			kernel.Cut(says, kernel.MaxEchoed)}
	}
	return s.config.OIDC.Finish(r.Context(), login, query.Get("code"))
}

// attemptName is the name of the cookie of a login under way.
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

// giveUpOldest makes room in the browser for another login under way. Browsers send cookies in the order in which they
// got them (RFC 6265, 5.4).
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

// cookieIn is the value of a cookie, or nothing.
func cookieIn(r *http.Request, name string) string {
	cookie, err := r.Cookie(name)
	if err != nil {
		return ""
	}
	return cookie.Value
}

// denyOIDC logs what went wrong at the provider: the person who logs in cannot mend it.
func (s *adminRoutes) denyOIDC(w http.ResponseWriter, r *http.Request, err error) {
	if bad, ok := errors.AsType[*access.ProviderError](err); ok && r.Context().Err() == nil {
		why := access.Redact(bad.Err.Error())
		s.Log.Warn("the provider of identities does not answer as it should", zap.String("error", why))
	}
	s.Deny(w, r, err)
}

// attemptCookie is Lax: the provider's page leads back here, which Strict would not count as ours.
func (s *adminRoutes) attemptCookie(name, value string, seconds int) *http.Cookie {
	return &http.Cookie{ //nolint:gosec // it is Secure where there is TLS
		Name: name, Value: value, Path: "/", HttpOnly: true, Secure: s.config.SecureCookies, MaxAge: seconds,
		SameSite: http.SameSiteLaxMode,
	}
}
