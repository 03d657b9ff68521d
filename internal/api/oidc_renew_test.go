package api_test

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/kernel"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
)

// PROOF: who may do what, 19.
// Whatever comes back from no login of ours leaves nothing behind that could be full: who
// logs in meanwhile is let in at once. It is told to the audit log, in a few rows.
func TestGarbageKeepsNobodyFromLoggingIn(t *testing.T) {
	t.Parallel()
	p := apitest.NewProvider(t)
	b := apitest.Setup(t).IdentifiedWith(p, access.OIDCConfig{DefaultRole: access.Viewer}, access.Config{UnknownBurst: 50})
	const many = 500
	throttled := 0
	for i := range many {
		state := "state" + strconv.Itoa(i)
		made, err := json.Marshal(access.Attempt{State: state, Nonce: "n", Verifier: "v", Until: time.Now().Add(time.Hour)})
		if err != nil {
			t.Fatal(err)
		}
		hash := access.HashOf(state)
		name := "tranche_login_" + hex.EncodeToString(hash[:8])
		cookie := []string{"Cookie", name + "=" + base64.RawURLEncoding.EncodeToString(made)}
		if i%3 == 0 {
			cookie = nil
		}
		answer := b.Send(http.MethodGet, kernel.OIDCCallback+"?state="+state+"&code=x", "", cookie...)
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
	b.Until("the audit log tells of it", `SELECT count(*) BETWEEN 1 AND 20 FROM audit_log
		WHERE action = 'login_failed' AND actor = 'anonymous' AND detail->>'by' = 'provider'`)
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
		if want := []int{401, 401, 401, 429}[i]; answer.StatusCode != want {
			t.Errorf("way back %d is answered %d; want %d", i, answer.StatusCode, want)
		}
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
			if in := b.Session(browser...).Authenticated; in != c.stays {
				t.Errorf("the session goes on: %v; want %v", in, c.stays)
			}
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
		t.Error("the session goes on without the provider")
	}
	p.GoAway(false)
	b.Oidc = oidc
	b.Renew()
	if !b.Locked().Session(browser...).Authenticated {
		t.Error("the session does not go on with the provider")
	}
	b.Exec(`UPDATE web_session SET renewal = NULL, checked_at = NULL, expires_at = expires_at + interval '12 hours',
		created_at = created_at - interval '5 minutes'`)
	if b.Locked().Session(browser...).Authenticated {
		t.Error("a session that a node of an earlier version has begun goes on")
	}
}

// PROOF: who may do what, 4.
// An admin ends the sessions of a user at once, whoever vouches for him, on all nodes.
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
		t.Errorf("the stream goes on after %s", access.RevocationTime)
	}
	b.Refused(http.StatusUnauthorized, "not known", http.MethodGet, api.Prefix+"/runs", nil, browser...)
	b.Refused(http.StatusNotFound, "no one is logged in", http.MethodPost, api.Prefix+"/sessions/revoke",
		strings.NewReader(user), admin...)
}
