package api_test

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/internal/testing/apitest"
)

func TestTheCookieIsForThisServersPagesOnly(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	for _, secure := range []bool{false, true} {
		b.LockedWith(api.Config{SecureCookies: secure}, access.Config{})
		w := b.LogIn(b.Token("ann", access.Operator, time.Hour).Secret)
		c := w.Cookie
		if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Secure != secure || c.Path != "/" ||
			strings.HasPrefix(c.Name, "__Host-") != secure || len(c.Value) < 40 {
			t.Errorf("with TLS %v the cookie is %+v", secure, c)
		}
		if c.Expires.After(time.Now().Add(time.Hour + time.Minute)) {
			t.Errorf("the cookie lives until %s, longer than its token", c.Expires)
		}
		doc := b.Session(w.Headers()...)
		if !doc.Authenticated || doc.User != "ann" || doc.Role != access.Operator || doc.ExpiresAt == nil {
			t.Errorf("the session is %+v", doc)
		}
	}
	var plain int
	if err := b.Pool.QueryRow(t.Context(), `SELECT count(*) FROM web_session WHERE length(hash) = 32`).
		Scan(&plain); err != nil || plain != 2 {
		t.Errorf("there are %d sessions by hash, %v; want 2", plain, err)
	}
}

func TestWithoutAuthEverybodyIsAnAdmin(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	doc := b.Session("Authorization", "Bearer nonsense")
	if !doc.Authenticated || doc.Auth != "off" || doc.Role != access.Admin || doc.User != kernel.Anonymous {
		t.Errorf("the session is %+v", doc)
	}
	b.Refused(http.StatusConflict, "--auth on", http.MethodPost, api.Prefix+"/session", strings.NewReader(`{"token":"x"}`),
		"Content-Type", "application/json")
}

func TestLoggingOutEndsTheSession(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t).Locked()
	w := b.LogIn(b.Token("ann", access.Viewer, 0).Secret)
	if doc := b.Session(w.Headers()...); !doc.Authenticated {
		t.Fatalf("the session is %+v", doc)
	}
	answer := b.Send(http.MethodDelete, api.Prefix+"/session", "", append(w.Headers(), "Sec-Fetch-Site", "same-origin")...)
	if answer.StatusCode != http.StatusOK || len(answer.Cookies()) != 1 || answer.Cookies()[0].Value != "" {
		t.Errorf("logging out: %d %v", answer.StatusCode, answer.Cookies())
	}
	if doc := b.Session(w.Headers()...); doc.Authenticated || doc.Auth != "on" {
		t.Errorf("the session is still %+v", doc)
	}
	b.Refused(http.StatusUnauthorized, "not known", http.MethodGet, api.Prefix+"/runs", nil, w.Headers()...)
}

// Sessions end by themselves: when no one has used them, in any case after a time, and with their token, whatever
// became of their row.
func TestSessionsExpire(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	const past = `tranche_now() - interval '61 minutes'`
	for name, c := range map[string]struct{ change, says string }{
		"idle":    {`UPDATE web_session SET active_at = ` + past + ` WHERE user_name = $1`, "the session has expired"},
		"old":     {`UPDATE web_session SET expires_at = ` + past + ` WHERE user_name = $1`, "the session has expired"},
		"expired": {`UPDATE api_token SET expires_at = ` + past + ` WHERE name = $1`, "the session has expired"},
		"revoked": {`UPDATE api_token SET revoked_at = ` + past + ` WHERE name = $1`, "the session was revoked"},
	} {
		b.Locked() // it remembers no one
		w := b.LogIn(b.Token(name, access.Viewer, 0).Secret)
		if _, err := b.Pool.Exec(t.Context(), c.change, name); err != nil {
			t.Fatal(err)
		}
		b.Locked()
		b.Refused(http.StatusUnauthorized, c.says, http.MethodGet, api.Prefix+"/runs", nil, w.Headers()...)
	}
}

// PROOF: who may do what, 19.
func TestLoginsAreThrottled(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	secret := b.Token("ann", access.Viewer, 0).Secret
	var spoofed atomic.Int32
	proxies := netip.MustParsePrefix("10.1.0.0/16")
	try := func(address, token string) *apitest.Head {
		return b.Send(http.MethodPost, api.Prefix+"/session", `{"token":"`+token+`"}`, "Content-Type", "application/json",
			"X-Forwarded-For", fmt.Sprintf("198.51.100.%d, %s, 10.1.2.3", spoofed.Add(1), address))
	}
	limits := access.ThrottleConfig{Burst: 3, TotalBurst: 5, Every: time.Hour, TotalEvery: time.Hour}
	b.LockedWith(api.Config{TrustedProxies: []netip.Prefix{apitest.Loopback, proxies}}, access.Config{Throttle: limits})
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
	// Whoever connects without a proxy is not believed.
	b.LockedWith(api.Config{TrustedProxies: []netip.Prefix{proxies}},
		access.Config{Throttle: limits})
	for i := range 4 {
		code := try(fmt.Sprintf("192.0.2.%d", i), access.NewSecret()).StatusCode
		if (code == http.StatusTooManyRequests) != (i == 3) {
			t.Errorf("login %d with another word on where it comes from: %d", i, code)
		}
	}
}
