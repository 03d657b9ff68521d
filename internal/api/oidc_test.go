package api_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/internal/testing/apitest"
)

// Logins that are in progress in one browser at once all end, in whatever order they are gone on with; of too many the
// oldest is given up.
func TestTabsLogInAtOnce(t *testing.T) {
	t.Parallel()
	p := apitest.NewProvider(t)
	b := apitest.Setup(t).Identified(p, access.OIDCConfig{DefaultRole: access.Viewer})
	var browser []*http.Cookie
	attempts := func() (n int) {
		for _, c := range browser {
			if strings.HasPrefix(c.Name, "tranche_login_") {
				n++
			}
		}
		return n
	}
	end := func(back string) *apitest.Head {
		answer := b.Send(http.MethodGet, back, "", apitest.SentBy(&browser)...)
		apitest.Keep(&browser, answer)
		return answer
	}
	first, _ := b.BeginIn(&browser, p, "/first")
	second, _ := b.BeginIn(&browser, p, "/second")
	for _, one := range []struct{ back, next string }{{first, "/first"}, {second, "/second"}} {
		answer := end(one.back)
		if answer.StatusCode != http.StatusSeeOther || answer.Header.Get("Location") != one.next {
			t.Errorf("%s: the login ends with %d at %q", one.next, answer.StatusCode, answer.Header.Get("Location"))
		}
	}
	if n := attempts(); n != 0 {
		t.Errorf("%d logins are still in progress", n)
	}
	var backs []string
	for range api.MaxAttempts + 1 {
		back, _ := b.BeginIn(&browser, p, "/")
		backs = append(backs, back)
	}
	if n := attempts(); n != api.MaxAttempts {
		t.Errorf("the browser keeps %d logins in progress; want %d", n, api.MaxAttempts)
	}
	for i, back := range backs {
		want := http.StatusSeeOther
		if i == 0 {
			want = http.StatusUnauthorized
		}
		if answer := end(back); answer.StatusCode != want {
			t.Errorf("login %d ends with %d; want %d", i, answer.StatusCode, want)
		}
	}
}

func TestLogInByAProvider(t *testing.T) {
	t.Parallel()
	p := apitest.NewProvider(t)
	b := apitest.Setup(t).Identified(p, access.OIDCConfig{
		RoleClaim: "realm.roles", Roles: map[string]access.Role{"staff": access.Viewer, "ops": access.Operator},
	})
	if doc := b.Session(); doc.Authenticated || !doc.OIDC {
		t.Errorf("before the login: %+v", doc)
	}
	for _, c := range []struct {
		name   string
		claims map[string]any
		user   string
		role   access.Role
		next   string
		then   string
	}{
		{"a list of groups, the greatest counts",
			map[string]any{"email": "ann@example.com", "email_verified": true,
				"realm": map[string]any{"roles": []string{"staff", "ops", "other"}}},
			"ann@example.com", access.Operator, "/runs/1?step=a", "/runs/1?step=a"},
		{"one group; an email that no one has verified is not believed",
			map[string]any{"email": "boss@example.com", "realm": map[string]any{"roles": "staff"}},
			"oidc:4711", access.Viewer, "//evil.example", "/"},
		{"a page elsewhere", map[string]any{"realm": map[string]any{"roles": "staff"}}, "oidc:4711", access.Viewer,
			`/\evil.example`, "/"},
	} {
		p.SaysOf(c.claims, nil)
		back, cookie := b.Begin(p, c.next)
		answer := b.Send(http.MethodGet, back, "", cookie...)
		browser := apitest.CookieOf(answer, "tranche_session")
		if answer.StatusCode != http.StatusSeeOther || browser == nil || answer.Header.Get("Location") != c.then {
			t.Errorf("%s: %d to %q, %v", c.name, answer.StatusCode, answer.Header.Get("Location"), answer.Cookies())
			continue
		}
		doc := b.Session(browser...)
		if !doc.Authenticated || doc.User != c.user || doc.Role != c.role {
			t.Errorf("%s: the session is %+v", c.name, doc)
		}
		for _, replay := range []string{back, p.AnotherCode(back)} {
			again := b.Send(http.MethodGet, replay, "", cookie...)
			if again.StatusCode != http.StatusUnauthorized || apitest.CookieOf(again, "tranche_session") != nil {
				t.Errorf("%s: used again it is answered %d", c.name, again.StatusCode)
			}
		}
		if c.role != access.Operator {
			b.Refused(http.StatusForbidden, c.user, http.MethodPost, api.Prefix+"/runs/pause", strings.NewReader(`{"all":true}`),
				slices.Concat(browser, []string{"Sec-Fetch-Site", "same-origin"})...)
		}
	}
	var logins int
	if err := b.Pool.QueryRow(t.Context(), `SELECT count(*) FROM audit_log WHERE action = 'login' AND
		actor IN ('ann@example.com', 'oidc:4711')`).Scan(&logins); err != nil || logins != 3 {
		t.Errorf("%d logins are audited, %v; want 3", logins, err)
	}
}

// What a provider did not say, or said to someone else, or said about someone without a role, lets no one in.
func TestALoginThatIsNotGoodIsRefused(t *testing.T) {
	t.Parallel()
	p := apitest.NewProvider(t)
	b := apitest.Setup(t).Identified(p, access.OIDCConfig{Roles: map[string]access.Role{"staff": access.Admin}})
	staff := map[string]any{"groups": "staff"}
	with := func(name string, value any) map[string]any { return map[string]any{"groups": "staff", name: value} }
	unsigned := func(header, claims map[string]any) string {
		header["alg"] = "none"
		return p.Unsigned(header, claims) + "."
	}
	for name, c := range map[string]struct {
		claims map[string]any
		sign   func(header, claims map[string]any) string
		change func(back string) string
		bare   bool // without the cookie of the browser
		want   int
	}{
		"good":             {claims: staff, want: http.StatusSeeOther},
		"another's nonce":  {claims: with("nonce", "another"), want: http.StatusUnauthorized},
		"no nonce":         {claims: with("nonce", nil), want: http.StatusUnauthorized},
		"another audience": {claims: with("aud", "another"), want: http.StatusUnauthorized},
		"another issuer":   {claims: with("iss", "https://evil.example"), want: http.StatusUnauthorized},
		"no subject":       {claims: with("sub", nil), want: http.StatusUnauthorized},
		"another party":    {claims: with("azp", "another"), want: http.StatusUnauthorized},
		"several clients": {claims: map[string]any{"groups": "staff", "aud": []string{"tranche", "another"},
			"azp": "another"}, want: http.StatusUnauthorized},
		"expired":         {claims: with("exp", time.Now().Add(-time.Minute).Unix()), want: http.StatusUnauthorized},
		"alg none":        {claims: staff, sign: unsigned, want: http.StatusUnauthorized},
		"no role":         {claims: map[string]any{"groups": []string{"guests"}}, want: http.StatusForbidden},
		"no groups":       {want: http.StatusForbidden},
		"a name of ours":  {claims: with("email_verified", true), want: http.StatusUnauthorized},
		"another browser": {claims: staff, bare: true, want: http.StatusUnauthorized},
		"another's state": {claims: staff, change: swap("state"), want: http.StatusUnauthorized},
		"a code made up":  {claims: staff, change: swap("code"), want: http.StatusUnauthorized},
		"no at the page":  {claims: staff, change: swap("error"), want: http.StatusUnauthorized},
		"no code, no state": {claims: staff, want: http.StatusUnauthorized,
			change: func(string) string { return kernel.OIDCCallback }},
		"another's signature": {claims: staff, want: http.StatusUnauthorized,
			sign: func(header, claims map[string]any) string { return p.Signed(p.Other, header, claims) }},
		"the public key as a secret": {claims: staff, want: http.StatusUnauthorized,
			sign: func(header, claims map[string]any) string {
				header["alg"] = "HS256"
				text := p.Unsigned(header, claims)
				mac := hmac.New(sha256.New, p.Key.N.Bytes())
				_, _ = mac.Write([]byte(text)) // a hash takes everything
				return text + "." + apitest.Encoded(mac.Sum(nil))
			}},
	} {
		if name == "a name of ours" {
			c.claims["email"] = "tranche"
		}
		p.SaysOf(c.claims, c.sign)
		back, cookie := b.Begin(p, "/")
		if c.change != nil {
			back = c.change(back)
		}
		if c.bare {
			cookie = nil
		}
		answer := b.Send(http.MethodGet, back, "", cookie...)
		if in := apitest.CookieOf(answer, "tranche_session") != nil; answer.StatusCode != c.want || in != (name == "good") {
			t.Errorf("%s: %d, let in: %v; want %d", name, answer.StatusCode, in, c.want)
		}
	}
	var sessions int
	err := b.Pool.QueryRow(t.Context(), `SELECT count(*) FROM web_session`).Scan(&sessions)
	if err != nil || sessions != 1 {
		t.Errorf("there are %d sessions, %v; want the good one", sessions, err)
	}
}

func swap(parameter string) func(back string) string {
	return func(back string) string {
		at, query, _ := strings.Cut(back, "?")
		values, _ := url.ParseQuery(query) // it was written by url.Values
		values.Set(parameter, "access_denied")
		return at + "?" + values.Encode()
	}
}

// A provider that is unavailable keeps no one from working who is logged in, or has a token; when it is back, so is the
// login.
func TestAProviderThatIsAway(t *testing.T) {
	t.Parallel()
	p := apitest.NewProvider(t)
	p.GoAway(true)
	b := apitest.Setup(t).Identified(p, access.OIDCConfig{DefaultRole: access.Viewer})
	token := []string{"Authorization", "Bearer " + b.Token("ann", access.Viewer, 0).Secret}
	b.Refused(http.StatusServiceUnavailable, "provider of identities", http.MethodGet, kernel.OIDCLogin, nil)
	if code, text := b.Ask(http.MethodGet, api.Prefix+"/runs", nil, token...); code != http.StatusOK {
		t.Errorf("with a token: %d %s", code, text)
	}
	p.GoAway(false)
	deadline, tick := time.After(2*time.Minute), time.NewTicker(50*time.Millisecond)
	defer tick.Stop()
	for b.Send(http.MethodGet, kernel.OIDCLogin, "").StatusCode != http.StatusSeeOther {
		select {
		case <-deadline:
			t.Fatal("the login does not come back with the provider")
		case <-tick.C:
		}
	}
	back, cookie := b.Begin(p, "/")
	if answer := b.Send(http.MethodGet, back, "", cookie...); answer.StatusCode != http.StatusSeeOther {
		t.Errorf("the login is answered %d", answer.StatusCode)
	}
}

func TestSettingsOfAProvider(t *testing.T) {
	t.Parallel()
	good := access.OIDCConfig{Issuer: "https://id.example", ClientID: "x", DefaultRole: access.Viewer}
	if _, err := access.NewOIDC(good); err != nil {
		t.Error(err)
	}
	for want, change := range map[string]func(*access.OIDCConfig){
		"--oidc-issuer":    func(c *access.OIDCConfig) { c.Issuer = "http://id.example" },
		"--oidc-client-id": func(c *access.OIDCConfig) { c.ClientID = "" },
		"--oidc-roles":     func(c *access.OIDCConfig) { c.DefaultRole = "" },
	} {
		bad := good
		change(&bad)
		if _, err := access.NewOIDC(bad); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s named", err, want)
		}
	}
}
