package api

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"go.uber.org/zap"

	"github.com/tranchehq/tranche/internal/access"
)

// Where a login by a provider of identities begins, and where the provider sends browsers back to.
const (
	OIDCLogin    = "/auth/oidc/login"
	OIDCCallback = "/auth/oidc/callback"
)

// Names of the cookie of a login under way.
const (
	attemptCookie       = "tranche_login"
	secureAttemptCookie = "__Host-" + attemptCookie
)

// loginUnderWay is what a browser keeps of a login: it has to end where it began.
type loginUnderWay struct {
	access.Attempt

	Next string // the page to go on to
}

// hasOIDC reports whether there is a login by a provider of identities.
func (s *Server) hasOIDC() bool { return s.config.Access != nil && s.config.OIDC != nil }

func (s *Server) registerOIDC(mux *routeMux) {
	if s.hasOIDC() {
		mux.HandleFunc("GET "+OIDCLogin, s.beginOIDC)
		mux.HandleFunc("GET "+OIDCCallback, s.endOIDC)
	}
}

func (s *Server) beginOIDC(w http.ResponseWriter, r *http.Request) {
	if err := s.config.Access.Try(s.callerAddress(r)); err != nil {
		s.deny(w, r, err)
		return
	}
	login := loginUnderWay{Attempt: access.NewAttempt(), Next: ownPage(r.URL.Query().Get("next"))}
	to, err := s.config.OIDC.LoginURL(r.Context(), login.Attempt)
	if err != nil {
		s.denyOIDC(w, r, err)
		return
	}
	text, err := json.Marshal(login)
	if err != nil {
		s.deny(w, r, err)
		return
	}
	http.SetCookie(w, s.attemptCookie(base64.RawURLEncoding.EncodeToString(text), int(access.AttemptTime.Seconds())))
	http.Redirect(w, r, to, http.StatusSeeOther)
}

// ownPage is a page of this server, whatever somebody wrote into a link.
func ownPage(path string) string {
	if !strings.HasPrefix(path, "/") || strings.ContainsAny(path, "\\\r\n\t") || strings.HasPrefix(path, "//") {
		return "/"
	}
	return path
}

// endOIDC begins the session. It is the one GET that changes something, and does so only for the browser in which the
// login began, and once.
func (s *Server) endOIDC(w http.ResponseWriter, r *http.Request) {
	login := s.underWayIn(r)
	http.SetCookie(w, s.attemptCookie("", -1))
	query := r.URL.Query()
	if query.Get("error") != "" {
		s.deny(w, r, &access.DeniedError{Why: "the provider of identities says " + cut(query.Get("error"), maxEchoed)})
		return
	}
	who, err := s.config.OIDC.Finish(r.Context(), login.Attempt, query.Get("state"), query.Get("code"))
	if err != nil {
		s.denyOIDC(w, r, err)
		return
	}
	secret, principal, err := s.config.Access.LogInAs(r.Context(), who)
	if err != nil {
		s.deny(w, r, err)
		return
	}
	cookie := s.cookie(secret, principal.ExpiresAt)
	http.SetCookie(w, &cookie)
	http.Redirect(w, r, ownPage(login.Next), http.StatusSeeOther)
}

func (s *Server) underWayIn(r *http.Request) (login loginUnderWay) {
	cookie, err := r.Cookie(s.attemptCookie("", 0).Name)
	if err != nil {
		return login
	}
	text, err := base64.RawURLEncoding.DecodeString(cookie.Value)
	if err != nil || json.Unmarshal(text, &login) != nil {
		return loginUnderWay{}
	}
	return login
}

// denyOIDC logs what went wrong at the provider: the person who logs in cannot mend it.
func (s *Server) denyOIDC(w http.ResponseWriter, r *http.Request, err error) {
	if bad, ok := errors.AsType[*access.ProviderError](err); ok && r.Context().Err() == nil {
		why := access.Redact(bad.Err.Error())
		s.log.Warn("the provider of identities does not answer as it should", zap.String("error", why))
	}
	s.deny(w, r, err)
}

// attemptCookie is Lax: the provider's page leads back here, which Strict would not count as ours.
func (s *Server) attemptCookie(value string, seconds int) *http.Cookie {
	c := &http.Cookie{ //nolint:gosec // it is Secure where there is TLS
		Name: attemptCookie, Value: value, Path: "/", HttpOnly: true, Secure: s.config.SecureCookies, MaxAge: seconds,
		SameSite: http.SameSiteLaxMode,
	}
	if s.config.SecureCookies {
		c.Name = secureAttemptCookie
	}
	return c
}
