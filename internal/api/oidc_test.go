package api_test

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// Concurrent logins in one browser all end, in any order; of too many the
// oldest is abandoned.
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
	testenv.Same(t, attempts(), 0, "logins are still in progress")
	var backs []string
	for range api.MaxAttempts + 1 {
		back, _ := b.BeginIn(&browser, p, "/")
		backs = append(backs, back)
	}
	testenv.Same(t, attempts(), api.MaxAttempts, "logins in progress of the browser")
	for i, back := range backs {
		want := http.StatusSeeOther
		if i == 0 {
			want = http.StatusUnauthorized
		}
		testenv.Same(t, end(back).StatusCode, want, "login %d ends with", i)
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
	testenv.Same(t, b.Number(`SELECT count(*) FROM audit_log WHERE action = 'login' AND
		actor IN ('ann@example.com', 'oidc:4711')`), 3, "logins that are audited")
}

// PROOF: who may do what, 18.
// What a provider did not say, or said to someone else, or said about someone without a role, lets no one in.
func TestALoginThatIsNotGoodIsRefused(t *testing.T) {
	t.Parallel()
	p := apitest.NewProvider(t)
	b := apitest.Setup(t).Identified(p, access.OIDCConfig{Roles: map[string]access.Role{"staff": access.Admin}})
	b.Token("robot", access.Viewer, 0)
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
			"azp": nil}, want: http.StatusUnauthorized},
		"expired":        {claims: with("exp", time.Now().Add(-time.Minute).Unix()), want: http.StatusUnauthorized},
		"alg none":       {claims: staff, sign: unsigned, want: http.StatusUnauthorized},
		"no role":        {claims: map[string]any{"groups": []string{"guests"}}, want: http.StatusForbidden},
		"no groups":      {want: http.StatusForbidden},
		"a name of ours": {claims: with("email_verified", true), want: http.StatusUnauthorized},
		"the name of a token": {claims: map[string]any{"groups": "staff", "email": "Robot", "email_verified": true},
			want: http.StatusUnauthorized},
		"another browser": {claims: staff, bare: true, want: http.StatusUnauthorized},
		"another's state": {claims: staff, change: swap("state"), want: http.StatusUnauthorized},
		"a code made up":  {claims: staff, change: swap("code"), want: http.StatusUnauthorized},
		"no at the page":  {claims: staff, change: swap("error"), want: http.StatusUnauthorized},
		"no code, no state": {claims: staff, want: http.StatusUnauthorized,
			change: func(string) string { return apicore.OIDCCallback }},
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
	testenv.Same(t, b.Number(`SELECT count(*) FROM web_session`), 1, "sessions: the good one")
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
	b.Refused(http.StatusServiceUnavailable, "identity provider", http.MethodGet, apicore.OIDCLogin, nil)
	b.JSON(http.MethodGet, "/runs", "", http.StatusOK, nil, token...)
	p.GoAway(false)
	apitest.Eventually(t, "the login comes back with the provider", func() bool {
		return b.Send(http.MethodGet, apicore.OIDCLogin, "").StatusCode == http.StatusSeeOther
	})
	back, cookie := b.Begin(p, "/")
	testenv.Same(t, b.Send(http.MethodGet, back, "", cookie...).StatusCode, http.StatusSeeOther, "the login is answered")
}

func TestSettingsOfAProvider(t *testing.T) {
	t.Parallel()
	good := access.OIDCConfig{Issuer: "https://id.example", ClientID: "x", DefaultRole: access.Viewer}
	testenv.Must(access.NewOIDC(good))(t)
	for want, change := range map[string]func(*access.OIDCConfig){
		"--oidc-issuer":    func(c *access.OIDCConfig) { c.Issuer = "http://id.example" },
		"--oidc-client-id": func(c *access.OIDCConfig) { c.ClientID = "" },
		"--oidc-roles":     func(c *access.OIDCConfig) { c.DefaultRole = "" },
	} {
		bad := good
		change(&bad)
		_, err := access.NewOIDC(bad)
		testenv.Says(t, err, want, "the error")
	}
}

// PROOF: who may do what, 19.
// Whatever comes back from no login of ours leaves nothing behind that could be full: who
// logs in meanwhile is let in immediately. It is told to the audit log, in a few rows.
func TestGarbageKeepsNobodyFromLoggingIn(t *testing.T) {
	t.Parallel()
	p := apitest.NewProvider(t)
	b := apitest.Setup(t).IdentifiedWith(p, access.OIDCConfig{DefaultRole: access.Viewer}, access.Config{UnknownBurst: 50})
	const many = 500
	throttled := 0
	for i := range many {
		state := "state" + strconv.Itoa(i)
		made, err := json.Marshal(access.Attempt{State: state, Nonce: "n", Verifier: "v", Until: time.Now().Add(time.Hour)})
		testenv.NoError(t, err)
		hash := access.HashOf(state)
		name := "tranche_login_" + hex.EncodeToString(hash[:8])
		cookie := []string{"Cookie", name + "=" + base64.RawURLEncoding.EncodeToString(made)}
		if i%3 == 0 {
			cookie = nil
		}
		answer := b.Send(http.MethodGet, apicore.OIDCCallback+"?state="+state+"&code=x", "", cookie...)
		switch {
		case answer.StatusCode == http.StatusTooManyRequests && answer.Header.Get("Retry-After") != "":
			throttled++
		case answer.StatusCode != http.StatusUnauthorized:
			t.Fatalf("garbage is answered %d", answer.StatusCode)
		}
	}
	if throttled < many/2 {
		t.Errorf("%d of %d were throttled", throttled, many)
	}
	watch := testenv.NewWatch(t)
	b.LogInBy(p)
	if took := watch.Ran(); took > 30*time.Second { // rather than when those attempts are over, after minutes
		t.Errorf("a login took %s", took)
	}
	b.Server.Close() // it writes what it has counted
	testenv.Same(t, b.Number(`SELECT (count(*) BETWEEN 1 AND 20)::int FROM audit_log WHERE action = 'login_failed'
		AND actor = 'anonymous' AND detail->>'by' = 'provider'`), 1, "the audit log reports it")
}

// Of an attempt that did begin here each way back is asked for at the provider, so an address has only a few of them.
func TestWaysBackAreThrottled(t *testing.T) {
	t.Parallel()
	p := apitest.NewProvider(t)
	b := apitest.Setup(t).IdentifiedWith(p, access.OIDCConfig{DefaultRole: access.Viewer},
		access.Config{Throttle: access.ThrottleConfig{Burst: 3, Every: time.Hour}})
	back, cookie := b.Begin(p, "/")
	for i := range 4 {
		answer := b.Send(http.MethodGet, strings.Replace(back, "code=", "code=x", 1), "", cookie...)
		testenv.Same(t, answer.StatusCode, []int{401, 401, 401, 429}[i], "way back %d is answered", i)
	}
}

// A session lasts for as long as the provider vouches for who it is, and for the same role: who loses a group there is
// out within five minutes, and who was made something else has to log in again.
func TestASessionEndsWhenTheProviderDoesNotVouchForIt(t *testing.T) {
	t.Parallel()
	staff := map[string]any{"groups": "staff"}
	for name, c := range map[string]struct {
		change func(p *apitest.Provider)
		stays  bool
	}{
		"nothing has changed":    {func(*apitest.Provider) {}, true},
		"the group is gone":      {func(p *apitest.Provider) { p.Claims = nil }, false},
		"userinfo: it is gone":   {func(p *apitest.Provider) { p.Claims, p.Bare = nil, true }, false},
		"another role":           {func(p *apitest.Provider) { p.Claims = map[string]any{"groups": "ops"} }, false},
		"logged out there":       {func(p *apitest.Provider) { clear(p.Renewals) }, false},
		"the key is another now": {func(p *apitest.Provider) { p.Key, p.Other = p.Other, p.Key }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := apitest.NewProvider(t)
			p.Refreshes = true
			p.SaysOf(staff, nil)
			b := apitest.Setup(t).Identified(p, access.OIDCConfig{
				Roles: map[string]access.Role{"staff": access.Viewer, "ops": access.Operator}})
			browser := b.LogInBy(p)
			p.Mu.Lock()
			c.change(p)
			p.Mu.Unlock()
			for range 2 { // with the refresh token of the login, and with the one that took its place
				b.Exec(`UPDATE web_session SET checked_at = checked_at - interval '4 minutes'`)
				b.Renew()
			}
			b.Locked() // a server that remembers no one
			testenv.Same(t, b.Session(browser...).Authenticated, c.stays, "the session continues")
			if rows := b.Number(`SELECT count(*) FROM audit_log WHERE action = 'session_end'`); (rows == 0) != c.stays {
				t.Errorf("there are %d rows about its end", rows)
			}
		})
	}
}

// A provider that cannot be asked for five minutes vouches for no one; when it is back, so are those for whom it does.
// One that gives no refresh token cannot be asked at all.
func TestASessionLastsFiveMinutesWithoutTheProvider(t *testing.T) {
	t.Parallel()
	p := apitest.NewProvider(t)
	b := apitest.Setup(t).Identified(p, access.OIDCConfig{DefaultRole: access.Viewer})
	short := b.Session(b.LogInBy(p)...)
	if left := time.Until(*short.ExpiresAt); left > 5*time.Minute-access.RevocationTime || !short.ByProvider {
		t.Errorf("without a refresh token the session lasts %s: %+v", left, short)
	}
	p.Refreshes = true
	browser := b.LogInBy(p)
	p.GoAway(true)
	stale := func() { b.Exec(`UPDATE web_session SET checked_at = checked_at - interval '5 minutes'`) }
	stale()
	b.Renew()
	without, oidc := b.Locked(), b.Oidc
	if without.Session(browser...).Authenticated {
		t.Error("the session continues without the provider")
	}
	p.GoAway(false)
	b.Oidc = oidc
	b.Renew()
	if !b.Locked().Session(browser...).Authenticated {
		t.Error("the session does not continue with the provider")
	}
	b.Exec(`UPDATE web_session SET renewal = NULL, checked_at = NULL, expires_at = expires_at + interval '12 hours',
		created_at = created_at - interval '5 minutes'`)
	if b.Locked().Session(browser...).Authenticated {
		t.Error("a session that a node of an earlier version has begun continues")
	}
}

// PROOF: who may do what, 4.
// An admin ends all sessions of a user immediately, on all nodes.
func TestRevokingSessions(t *testing.T) {
	t.Parallel()
	p := apitest.NewProvider(t)
	p.Refreshes = true
	open := apitest.Setup(t)
	open.Start("name=it")
	b := open.Identified(p, access.OIDCConfig{DefaultRole: access.Viewer})
	browser := b.LogInBy(p)
	opened, ended := b.OpenStream(b.URL, browser...)
	if !opened {
		t.Fatal("no stream")
	}
	b.Locked() // another node
	admin := []string{"Authorization", "Bearer " + b.Token("ann", access.Admin, 0).Secret,
		"Content-Type", "application/json"}
	code, text := b.Ask(http.MethodGet, api.Prefix+"/sessions", nil, admin...)
	if code != http.StatusOK || !strings.Contains(string(text), `"user":"oidc:4711"`) {
		t.Errorf("the list: %d %s", code, text)
	}
	user := `{"user":"oidc:4711"}`
	code, text = b.Ask(http.MethodPost, api.Prefix+"/sessions/revoke", strings.NewReader(user), admin...)
	if code != http.StatusOK || !strings.Contains(string(text), `"sessions":1`) {
		t.Fatalf("revoking: %d %s", code, text)
	}
	if _, ok := testenv.ReceiveBefore(ended, testenv.NewWatch(t).After(access.RevocationTime)); !ok {
		t.Errorf("the stream continues after %s", access.RevocationTime)
	}
	b.Refused(http.StatusUnauthorized, "not known", http.MethodGet, api.Prefix+"/runs", nil, browser...)
	b.Refused(http.StatusNotFound, "no one is logged in", http.MethodPost, api.Prefix+"/sessions/revoke",
		strings.NewReader(user), admin...)
}
