package access_test

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// renewals is what a renewer keeps in the database: the sessions that are due, and their outcomes.
type renewals struct {
	due []identity.DueSession

	mu             sync.Mutex
	renewed, ended []string
	broken         error // of a renewal that was written down after the turn was interrupted
}

func (s *renewals) DueSessions(context.Context, time.Duration, time.Duration, int) ([]identity.DueSession, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(s.due), func(one identity.DueSession) bool {
		return slices.Contains(s.renewed, string(one.Hash)) || slices.Contains(s.ended, string(one.Hash))
	}), nil
}

func (s *renewals) RenewSession(ctx context.Context, due *identity.DueSession, _ []byte) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.broken = ctx.Err(); s.broken == nil {
		s.renewed = append(s.renewed, string(due.Hash))
	}
	return s.broken
}

func (s *renewals) EndDueSession(_ context.Context, due *identity.DueSession, _ string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ended = append(s.ended, string(due.Hash))
	return nil
}

// renewing is a renewer, and the provider that it asks.
type renewing struct {
	*access.Renewer

	oidc  *access.OIDC
	store renewals
	url   string
}

const sameToken = `{"access_token":"a","token_type":"Bearer","refresh_token":"next"}`

// newRenewing has a provider that answers to refresh tokens, at /token, and at /userinfo and /keys.
func newRenewing(t *testing.T, answers map[string]http.HandlerFunc) *renewing {
	t.Helper()
	mux := http.NewServeMux()
	provider := httptest.NewServer(mux)
	t.Cleanup(provider.Close)
	say := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(text))
		}
	}
	mux.Handle("/.well-known/openid-configuration", say(fmt.Sprintf(`{"issuer":%q,"token_endpoint":%q,
		"authorization_endpoint":%q,"userinfo_endpoint":%q,"jwks_uri":%q}`, provider.URL, provider.URL+"/token",
		provider.URL+"/authorize", provider.URL+"/userinfo", provider.URL+"/keys")))
	for path, usual := range map[string]http.HandlerFunc{
		"/token": say(sameToken), "/userinfo": say(`{"sub":"4711"}`), "/keys": say(`{"keys":[]}`),
	} {
		if answers[path] != nil {
			usual = answers[path]
		}
		mux.Handle(path, usual)
	}
	r := &renewing{url: provider.URL}
	r.oidc = newOIDC(t, provider.URL, "a secret")
	var err error
	r.Renewer, err = access.NewRenewer(r.oidc, &r.store, nil)
	testenv.NoError(t, err)
	return r
}

func newOIDC(t *testing.T, issuer, secret string) *access.OIDC {
	t.Helper()
	o, err := access.NewOIDC(access.OIDCConfig{Issuer: issuer, ClientID: "tranche", ClientSecret: secret,
		DefaultRole: access.Viewer})
	testenv.NoError(t, err)
	return o
}

// session is one that is due, with a refresh token that is its name.
func (r *renewing) session(name string) {
	r.store.due = append(r.store.due, identity.DueSession{Hash: []byte(name), User: "oidc:4711", Role: "viewer",
		Subject: "4711", Renewal: r.oidc.SealRenewal(name)})
}

// A provider that has trouble with some sessions is asked about all others, and not about those first the next time.
func TestOneSessionKeepsNoOtherFromBeingRenewed(t *testing.T) {
	t.Parallel()
	var asked sync.Map
	r := newRenewing(t, map[string]http.HandlerFunc{"/token": func(w http.ResponseWriter, q *http.Request) {
		asked.Store(q.FormValue("refresh_token"), true)
		if strings.HasPrefix(q.FormValue("refresh_token"), "bad") {
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write([]byte(sameToken))
	}})
	r.session("bad")
	const good = 30
	for i := range good {
		r.session("good" + strconv.Itoa(i))
	}
	_, err := r.Run(t.Context(), workqueue.Lease{})
	testenv.Fails(t, err, "nothing is said of the one that failed")
	if len(r.store.renewed) != good || len(r.store.ended) > 0 {
		t.Errorf("%d sessions were renewed and %v ended", len(r.store.renewed), r.store.ended)
	}
	asked.Delete("bad")
	r.session("another")
	if _, err := r.Run(t.Context(), workqueue.Lease{}); err != nil || len(r.store.renewed) != good+1 {
		t.Errorf("the next turn: %v, and %d were renewed", err, len(r.store.renewed))
	}
	if _, again := asked.Load("bad"); again {
		t.Error("the one that failed was asked about again immediately")
	}
}

// A provider that is unavailable is not asked about everybody. (Each time twice: the client tries two ways to say who
// it is.)
func TestAProviderThatIsAwayIsAskedAboutFew(t *testing.T) {
	t.Parallel()
	var asked atomic.Int32
	r := newRenewing(t, map[string]http.HandlerFunc{"/token": func(w http.ResponseWriter, _ *http.Request) {
		asked.Add(1)
		w.WriteHeader(http.StatusServiceUnavailable)
	}})
	for i := range 300 {
		r.session(strconv.Itoa(i))
	}
	if _, err := r.Run(t.Context(), workqueue.Lease{}); err == nil || asked.Load() > 2*(10+8) {
		t.Errorf("it was asked %d times: %v", asked.Load(), err)
	}
}

// A turn that is interrupted keeps the refresh token that the provider has just given: the one before may be used up.
func TestTheNextRefreshTokenIsKept(t *testing.T) {
	t.Parallel()
	ctx, breakOff := context.WithCancel(t.Context())
	var asks []string
	r := newRenewing(t, map[string]http.HandlerFunc{
		"/token": func(w http.ResponseWriter, q *http.Request) {
			asks = append(asks, q.FormValue("refresh_token"))
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(sameToken))
		},
		"/userinfo": func(w http.ResponseWriter, _ *http.Request) {
			breakOff()
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(`{"sub":"4711"}`))
		},
	})
	r.session("ann")
	if _, err := r.Run(ctx, workqueue.Lease{}); err != nil || len(r.store.renewed) != 1 || len(asks) != 1 {
		t.Errorf("%v were renewed after %v: %v, %v", r.store.renewed, asks, err, r.store.broken)
	}
}

// A long page to continue to does not make the cookie of a login one that browsers throw away.
func TestALongPageLeavesTheAttemptShort(t *testing.T) {
	t.Parallel()
	o := newOIDC(t, "https://id.example.org", "a secret")
	for next, stays := range map[string]bool{
		"/runs?of=" + strings.Repeat("a", 500): true, "/" + strings.Repeat("&", 1000): false,
		"/" + strings.Repeat("a", 5000): false,
	} {
		attempt := access.NewAttempt(next)
		sealed, err := o.Seal(&attempt)
		if err != nil || len(sealed) > 3000 || (attempt.Next == next) != stays {
			t.Errorf("%.20s… (%d): %d bytes, continues to %.20s: %v", next, len(next), len(sealed), attempt.Next, err)
		}
	}
}

// Only what the provider says of a login ends its session: trouble on the way, or with this server, does not.
func TestTroubleWithTheProviderEndsNoSession(t *testing.T) {
	t.Parallel()
	answer := func(code int, text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(code)
			_, _ = w.Write([]byte(text))
		}
	}
	for name, c := range map[string]struct {
		path   string
		answer http.HandlerFunc
		ends   bool
	}{
		"the login ended":          {"/token", answer(http.StatusBadRequest, `{"error":"invalid_grant"}`), true},
		"this server is not known": {"/token", answer(http.StatusUnauthorized, `{"error":"invalid_client"}`), false},
		"a gateway forbids":        {"/token", answer(http.StatusForbidden, `<html>`), false},
		"a gateway finds nothing":  {"/token", answer(http.StatusNotFound, `<html>`), false},
		"it took too long":         {"/token", answer(http.StatusRequestTimeout, ``), false},
		"userinfo says no":         {"/userinfo", answer(http.StatusUnauthorized, ``), false},
		"someone else":             {"/userinfo", answer(http.StatusOK, `{"sub":"1"}`), true},
		"another name": {"/userinfo",
			answer(http.StatusOK, `{"sub":"4711","email":"a@b.c","email_verified":true}`), true},
		"the same": {"/userinfo", answer(http.StatusOK, `{"sub":"4711"}`), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRenewing(t, map[string]http.HandlerFunc{c.path: c.answer})
			r.session("ann")
			_, err := r.Run(t.Context(), workqueue.Lease{})
			if ended := len(r.store.ended) == 1; ended != c.ends {
				t.Errorf("the session ended: %v; want %v (%v)", ended, c.ends, err)
			}
		})
	}
	t.Run("the keys are out of reach", func(t *testing.T) {
		t.Parallel()
		var token http.HandlerFunc
		r := newRenewing(t, map[string]http.HandlerFunc{"/keys": answer(http.StatusBadGateway, ``),
			"/token": func(w http.ResponseWriter, q *http.Request) { token(w, q) }})
		part := base64.RawURLEncoding.EncodeToString
		id := strings.Join([]string{part([]byte(`{"alg":"RS256","kid":"one"}`)),
			part(fmt.Appendf(nil, `{"iss":%q,"aud":"tranche","sub":"4711","exp":%d}`, r.url,
				time.Now().Add(time.Hour).Unix())), part([]byte("signed"))}, ".")
		token = answer(http.StatusOK, `{"access_token":"a","token_type":"Bearer","id_token":"`+id+`"}`)
		r.session("ann")
		if _, err := r.Run(t.Context(), workqueue.Lease{}); err == nil || len(r.store.ended) > 0 {
			t.Errorf("%v have ended: %v", r.store.ended, err)
		}
	})
	t.Run("another client secret", func(t *testing.T) {
		t.Parallel()
		r := newRenewing(t, nil)
		r.oidc = newOIDC(t, r.url, "another secret")
		r.session("ann")
		if _, err := r.Run(t.Context(), workqueue.Lease{}); err == nil || len(r.store.ended) > 0 {
			t.Errorf("%v have ended: %v", r.store.ended, err)
		}
	})
}
