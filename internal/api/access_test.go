package api_test

import (
	"cmp"
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/admin"
	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/internal/testenv"
	"github.com/tranchehq/tranche/workqueue/identity"
)

// lockedBench is a server that asks everybody who they are.
type lockedBench struct {
	*bench
	log *observer.ObservedLogs
}

// locked makes the bench one that needs a login.
func (b *bench) locked() *lockedBench {
	b.Helper()
	return b.lockedWith(api.Config{}, access.Config{})
}

func (b *bench) lockedWith(config api.Config, how access.Config) *lockedBench {
	b.Helper()
	core, seen := observer.New(zap.DebugLevel)
	how.Log, config.Log = zap.New(core), zap.New(core)
	how.UnknownBurst = cmp.Or(how.UnknownBurst, 100_000) // most tests try more than anybody may
	gate, err := access.New(identity.New(b.store), how)
	if err != nil {
		b.Fatal(err)
	}
	config.Access, config.Alerts = gate, tellers(b.T)
	if config.Metrics == nil {
		config.Metrics = newMeasured()
	}
	b.Over(b.engine, testenv.Conn(b, testenv.NATS(b)), config)
	return &lockedBench{b, seen}
}

// madeToken is a token whose secret the test knows.
type madeToken struct {
	identity.TokenView
	secret string
}

// token makes a token behind the API's back. A life of less than nothing makes one that has expired.
func (b *bench) token(name string, role access.Role, life time.Duration) madeToken {
	b.Helper()
	secret := access.NewSecret()
	made, err := identity.New(b.store).CreateToken(b.Context(), identity.NewToken{
		Name: name, Role: string(role), Hash: access.HashOf(secret), ExpiresIn: max(life, 0),
	}, "the test")
	if err != nil {
		b.Fatal(err)
	}
	if life < 0 {
		if _, err := b.pool.Exec(b.Context(), `UPDATE api_token SET expires_at = clock_timestamp() - interval '1 minute'
			WHERE id = $1`, made.ID); err != nil {
			b.Fatal(err)
		}
	}
	return madeToken{made, secret}
}

// browser is somebody who has logged in.
type browser struct{ cookie *http.Cookie }

func (w browser) headers() []string { return []string{"Cookie", w.cookie.Name + "=" + w.cookie.Value} }

func (b *bench) logIn(secret string) browser {
	b.Helper()
	answer := b.send(http.MethodPost, api.Prefix+"/session", `{"token":"`+secret+`"}`, "Content-Type", "application/json")
	if answer.StatusCode != http.StatusOK || len(answer.Cookies()) != 1 {
		b.Fatalf("the login was answered with %d and %v", answer.StatusCode, answer.Cookies())
	}
	return browser{answer.Cookies()[0]}
}

// head is an answer without its body.
type head struct {
	StatusCode int
	Header     http.Header
	cookies    []*http.Cookie
}

// Cookies are those that the answer sets.
func (h *head) Cookies() []*http.Cookie { return h.cookies }

// send returns an answer without its body.
func (b *bench) send(method, path, body string, header ...string) *head {
	b.Helper()
	req, err := http.NewRequestWithContext(b.Context(), method, b.url+path, strings.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	answer, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = answer.Body.Close() }()
	return &head{answer.StatusCode, answer.Header, answer.Cookies()}
}

func (b *bench) session(header ...string) (doc admin.SessionDocument) {
	b.Helper()
	code, text := b.ask(http.MethodGet, api.Prefix+"/session", nil, header...)
	if err := json.Unmarshal(text, &doc); err != nil || code != http.StatusOK {
		b.Fatalf("GET /session: %d %s, %v", code, text, err)
	}
	return doc
}

func TestTheCookieIsForThisServersPagesOnly(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, secure := range []bool{false, true} {
		b.lockedWith(api.Config{SecureCookies: secure}, access.Config{})
		w := b.logIn(b.token("ann", access.Operator, time.Hour).secret)
		c := w.cookie
		if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Secure != secure || c.Path != "/" ||
			strings.HasPrefix(c.Name, "__Host-") != secure || len(c.Value) < 40 {
			t.Errorf("with TLS %v the cookie is %+v", secure, c)
		}
		if c.Expires.After(time.Now().Add(time.Hour + time.Minute)) {
			t.Errorf("the cookie lives until %s, longer than its token", c.Expires)
		}
		doc := b.session(w.headers()...)
		if !doc.Authenticated || doc.User != "ann" || doc.Role != access.Operator || doc.ExpiresAt == nil {
			t.Errorf("the session is %+v", doc)
		}
	}
	var plain int
	if err := b.pool.QueryRow(t.Context(), `SELECT count(*) FROM web_session WHERE length(hash) = 32`).
		Scan(&plain); err != nil || plain != 2 {
		t.Errorf("there are %d sessions by hash, %v; want 2", plain, err)
	}
}

func TestWithoutAuthEverybodyIsAnAdmin(t *testing.T) {
	t.Parallel()
	b := setup(t)
	doc := b.session("Authorization", "Bearer nonsense")
	if !doc.Authenticated || doc.Auth != "off" || doc.Role != access.Admin || doc.User != kernel.Anonymous {
		t.Errorf("the session is %+v", doc)
	}
	b.refused(http.StatusConflict, "--auth on", http.MethodPost, api.Prefix+"/session", strings.NewReader(`{"token":"x"}`),
		"Content-Type", "application/json")
}

func TestLoggingOutEndsTheSession(t *testing.T) {
	t.Parallel()
	b := setup(t).locked()
	w := b.logIn(b.token("ann", access.Viewer, 0).secret)
	if doc := b.session(w.headers()...); !doc.Authenticated {
		t.Fatalf("the session is %+v", doc)
	}
	answer := b.send(http.MethodDelete, api.Prefix+"/session", "", append(w.headers(), "Sec-Fetch-Site", "same-origin")...)
	if answer.StatusCode != http.StatusOK || len(answer.Cookies()) != 1 || answer.Cookies()[0].Value != "" {
		t.Errorf("logging out: %d %v", answer.StatusCode, answer.Cookies())
	}
	if doc := b.session(w.headers()...); doc.Authenticated || doc.Auth != "on" {
		t.Errorf("the session is still %+v", doc)
	}
	b.refused(http.StatusUnauthorized, "not known", http.MethodGet, api.Prefix+"/runs", nil, w.headers()...)
}

// Sessions end by themselves: when nobody has used them, in any case after a time, and with their token, whatever
// became of their row.
func TestSessionsExpire(t *testing.T) {
	t.Parallel()
	b := setup(t)
	const past = `clock_timestamp() - interval '61 minutes'`
	for name, c := range map[string]struct{ change, says string }{
		"idle":    {`UPDATE web_session SET active_at = ` + past + ` WHERE user_name = $1`, "the session has expired"},
		"old":     {`UPDATE web_session SET expires_at = ` + past + ` WHERE user_name = $1`, "the session has expired"},
		"expired": {`UPDATE api_token SET expires_at = ` + past + ` WHERE name = $1`, "the session has expired"},
		"revoked": {`UPDATE api_token SET revoked_at = ` + past + ` WHERE name = $1`, "the session was revoked"},
	} {
		b.locked() // it remembers nobody
		w := b.logIn(b.token(name, access.Viewer, 0).secret)
		if _, err := b.pool.Exec(t.Context(), c.change, name); err != nil {
			t.Fatal(err)
		}
		b.locked()
		b.refused(http.StatusUnauthorized, c.says, http.MethodGet, api.Prefix+"/runs", nil, w.headers()...)
	}
}

// PROOF: who may do what, 19.
func TestLoginsAreThrottled(t *testing.T) {
	t.Parallel()
	b := setup(t)
	secret := b.token("ann", access.Viewer, 0).secret
	try := func(address, token string) *head {
		return b.send(http.MethodPost, api.Prefix+"/session", `{"token":"`+token+`"}`, "Content-Type", "application/json",
			"X-Forwarded-For", "198.51.100.7, "+address)
	}
	limits := access.ThrottleConfig{Burst: 3, TotalBurst: 5, Every: time.Hour, TotalEvery: time.Hour}
	b.lockedWith(api.Config{BehindProxy: true}, access.Config{Throttle: limits})
	for i, address := range []string{"192.0.2.1", "192.0.2.1:5678", "192.0.2.1:1"} { // some proxies write ports, too
		if a := try(address, access.NewSecret()); a.StatusCode != http.StatusUnauthorized ||
			a.Header.Get("WWW-Authenticate") == "" {
			t.Errorf("login %d: %d; want 401", i, a.StatusCode)
		}
	}
	if a := try("192.0.2.1", secret); a.StatusCode != http.StatusTooManyRequests || a.Header.Get("Retry-After") == "" {
		t.Errorf("the fourth login of an address: %d, %v; want 429", a.StatusCode, a.Header)
	}
	if a := try("192.0.2.2", secret); a.StatusCode != http.StatusOK {
		t.Errorf("the login from another address: %d", a.StatusCode)
	}
	if a := try("[2001:db8::1]:80", secret); a.StatusCode != http.StatusOK {
		t.Errorf("the login from a third address: %d", a.StatusCode)
	}
	if a := try("2001:db8::2", secret); a.StatusCode != http.StatusTooManyRequests {
		t.Errorf("the sixth login in all: %d; want 429", a.StatusCode)
	}
}
