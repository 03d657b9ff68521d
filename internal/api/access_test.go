package api_test

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/testing/apitest"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	wqdatabase "github.com/tranchehq/tranche/workqueue/database"
	"github.com/tranchehq/tranche/workqueue/identity"
)

func TestTheCookieIsForThisServersPagesOnly(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	for _, secure := range []bool{false, true} {
		b.LockedWith(api.Config{SecureCookies: secure}, access.Config{})
		w := b.LogIn(b.Token(fmt.Sprint("ann ", secure), access.Operator, time.Hour).Secret)
		c := w.Cookie
		if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Secure != secure || c.Path != "/" ||
			strings.HasPrefix(c.Name, "__Host-") != secure || len(c.Value) < 40 {
			t.Errorf("with TLS %v the cookie is %+v", secure, c)
		}
		if c.Expires.After(time.Now().Add(time.Hour + time.Minute)) {
			t.Errorf("the cookie lives until %s, longer than its token", c.Expires)
		}
		doc := b.Session(w.Headers()...)
		if !doc.Authenticated || doc.User != fmt.Sprint("ann ", secure) || doc.Role != access.Operator ||
			doc.ExpiresAt == nil {
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
	if !doc.Authenticated || doc.Auth != "off" || doc.Role != access.Admin || doc.User != apicore.Anonymous {
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
		testenv.Must(b.Pool.Exec(t.Context(), c.change, name))(t)
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
			"X-Forwarded-For", fmt.Sprintf("198.51.100.%d, %s", spoofed.Add(1), address))
	}
	limits := access.ThrottleConfig{Burst: 3, TotalBurst: 5, Every: time.Hour, TotalEvery: time.Hour}
	b.LockedWith(api.Config{TrustedProxies: []netip.Prefix{apitest.Loopback}}, access.Config{Throttle: limits})
	for i, address := range []string{"192.0.2.1", "192.0.2.1:5678", "192.0.2.1:1"} { // some proxies write ports, too
		if a := try(address, access.NewSecret()); a.StatusCode != http.StatusUnauthorized ||
			a.Header.Get("WWW-Authenticate") == "" {
			t.Errorf("login %d: %d; want 401", i, a.StatusCode)
		}
	}
	if a := try("192.0.2.1", secret); a.StatusCode != http.StatusTooManyRequests || a.Header.Get("Retry-After") == "" {
		t.Errorf("the fourth login of an address: %d, %v; want 429", a.StatusCode, a.Header)
	}
	testenv.Same(t, try("192.0.2.2", secret).StatusCode, http.StatusOK, "the login from another address")
	testenv.Same(t, try("[2001:db8::1]:80", secret).StatusCode, http.StatusOK, "the login from a third address")
	testenv.Same(t, try("2001:db8::2", secret).StatusCode, http.StatusTooManyRequests, "the sixth login in all")
	// Whoever connects without a proxy is not believed.
	b.LockedWith(api.Config{TrustedProxies: []netip.Prefix{proxies}}, access.Config{Throttle: limits})
	for i := range 4 {
		code := try(fmt.Sprintf("192.0.2.%d", i), access.NewSecret()).StatusCode
		testenv.Same(t, (code == http.StatusTooManyRequests), (i == 3),
			"login %d with another word on where it comes from: %d", i, code)
	}
}

// PROOF: who may do what, 4 and 7.
// A revoked token is of no use within five seconds: on the node that was told and on another, for new requests and for
// streams that are open, by the token itself and by a browser that had logged in with it. So is one that expires.
// Others continue.
func TestARevokedTokenEndsEverywhere(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.Start("name=it")
	admin := b.Token("ann", access.Admin, 0)
	ends := map[string]apitest.MadeToken{"revoked": b.Token("vic", access.Viewer, 0), "expiring": b.Token("eve",
		access.Viewer, 0)}
	stays := b.Token("sue", access.Viewer, 0)
	var nodes []string
	for range 2 {
		b.Locked()
		nodes = append(nodes, b.URL)
	}
	begun, watch := map[string]<-chan time.Time{}, testenv.NewWatch(t)
	ways := map[string][]string{"stays": {"Authorization", "Bearer " + stays.Secret}}
	for name, token := range ends {
		ways[name] = []string{"Authorization", "Bearer " + token.Secret}
		ways[name+", browser"] = b.LogIn(token.Secret).Headers()
	}
	for _, node := range nodes {
		for name, headers := range ways {
			opened, ended := b.OpenStream(node, headers...)
			if !opened {
				t.Fatalf("%s opened no stream", name)
			}
			begun[name+" at "+node] = ended
		}
	}
	code, text := b.Ask(http.MethodPost, api.Prefix+"/tokens/vic/revoke", nil, "Authorization", "Bearer "+admin.Secret)
	testenv.MustSame(t, code, http.StatusOK, "revoking: %s", text)
	const expire = `UPDATE api_token SET expires_at = tranche_now() WHERE name = 'eve'`
	testenv.Must(b.Pool.Exec(t.Context(), expire))(t)
	limit := watch.After(access.RevocationTime)
	for name, ended := range begun {
		if name == "stays at "+nodes[0] || name == "stays at "+nodes[1] {
			continue
		}
		if _, ok := testenv.ReceiveBefore(ended, limit); !ok {
			t.Fatalf("%s: its stream continues after %s", name, access.RevocationTime)
		}
	}
	for _, node := range nodes {
		for name, headers := range ways {
			if opened, _ := b.OpenStream(node, headers...); opened != (name == "stays") {
				t.Errorf("%s: a new stream was opened: %v", name, opened)
			}
		}
		select {
		case <-begun["stays at "+node]:
			if watch.Longest() < access.RevocationTime/2 { // else it was not to be learned in time whether it may continue
				t.Error("the stream of another token ended too")
			}
		default:
		}
	}
}

// A change that is in progress when its token is revoked is interrupted, and leaves nothing.
func TestARevokedTokenBreaksOffAnUpload(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t).Locked()
	token := b.Token("ann", access.Operator, 0)
	// Not by a client of net/http, which may see that the connection is gone before it sees the answer.
	conn := b.Stalled("/runs?endpoint=echo&name=late", "Content-Type: text/csv\r\nAuthorization: Bearer "+token.Secret+
		"\r\nContent-Length: 99999999", "")
	go func() {
		padding := strings.Repeat("x", 1000)
		for i := 0; ; i++ {
			if _, err := fmt.Fprintf(conn, "%d,%s\n", i, padding); err != nil {
				return
			}
			select {
			case <-b.Context().Done():
				return
			case <-time.After(10 * time.Millisecond):
			}
		}
	}()
	type answered struct {
		code int
		text json.RawMessage
		err  error
	}
	answer := make(chan answered, 1)
	go func() {
		var a answered
		head, err := http.ReadResponse(bufio.NewReader(conn), nil) //nolint:bodyclose // it waits for the connection's end
		if a.err = err; err == nil {
			a.code, a.err = head.StatusCode, json.NewDecoder(head.Body).Decode(&a.text)
		}
		answer <- a
	}()
	apitest.Eventually(t, "the token is used", func() (used bool) {
		const look = `SELECT last_used_at IS NOT NULL FROM api_token WHERE id = $1`
		return b.Pool.QueryRow(t.Context(), look, token.ID).Scan(&used) == nil && used
	})
	testenv.Must(identity.New(b.Store).RevokeToken(t.Context(), token.ID.String(), "the test"))(t)
	limit := testenv.NewWatch(t).After(time.Minute) // what it wrote is undone, however slow the database is
	a, ok := testenv.ReceiveBefore(answer, limit)
	if !ok {
		t.Fatal("the upload continues")
	}
	var p apitest.Problem
	testenv.NoError(t, json.Unmarshal(a.text, &p))
	testenv.Same(t, a.code, http.StatusUnauthorized, "the upload was answered %s, %v", a.text, a.err)
	var runs int
	testenv.NoError(t, b.Pool.QueryRow(t.Context(), `SELECT count(*) FROM batchrun`).Scan(&runs))
	testenv.Same(t, runs, 0, "runs are left")
}

// PROOF: who may do what, 15, 18 and 22.
// Logins that fail are in the audit log, by the role that serves, which cannot take them out
// again; who has a token that is good is let in anyway, from the same address.
func TestFailedLoginsAreAudited(t *testing.T) {
	t.Parallel()
	database := testenv.Database(t)
	b := apitest.Setup(t)
	b.Pool = testenv.Connect(t, database)
	serving := testenv.Connect(t, testenv.Serving(t, database))
	b.Store = wqdatabase.New(serving)
	good := b.Token("ann", access.Viewer, 0).Secret
	gone := b.Token("gone", access.Viewer, -1).Secret
	b.LockedWith(api.Config{}, access.Config{UnknownBurst: 20, UnknownEvery: time.Hour})
	with := func(secret string) []string { return []string{"Authorization", "Bearer " + secret} }
	ask := func(secret string) *apitest.Head {
		return b.Send(http.MethodGet, api.Prefix+"/tokens", "", with(secret)...)
	}
	testenv.Same(t, ask(good).StatusCode, http.StatusForbidden, "a viewer gets")
	refused := map[int]int{}
	for range 200 {
		refused[ask(access.NewSecret()).StatusCode]++
	}
	if refused[http.StatusUnauthorized] < 20 || refused[http.StatusTooManyRequests] < 150 {
		t.Errorf("200 tokens that are made up got %v", refused)
	}
	if a := ask(access.NewSecret()); a.Header.Get("Retry-After") == "" {
		t.Errorf("one more got %d, %v", a.StatusCode, a.Header)
	}
	testenv.Same(t, ask(good).StatusCode, http.StatusForbidden, "after that a viewer gets")
	_ = ask(gone)    // refused as well
	b.Server.Close() // it writes what it has counted
	testenv.Same(t, b.Number(`SELECT (count(*) BETWEEN 1 AND 3 AND bool_and(actor = 'anonymous' AND
		subject = '127.0.0.1' AND detail->>'by' = 'token'))::int FROM audit_log WHERE action = 'login_failed'`), 1,
		"the audit log reports it")
	testenv.Same(t, b.Number(`SELECT sum((detail->>'count')::int) FROM audit_log WHERE action = 'request_refused'
		AND actor = 'ann' AND subject = 'GET /api/v1/tokens' AND detail->>'by' = '403' AND origin->>'address' = '127.0.0.1'`),
		2, "requests that were refused")
	for _, statement := range []string{
		`DELETE FROM audit_log`, `UPDATE audit_log SET actor = 'x'`, `TRUNCATE audit_log`, `DROP TABLE audit_log`,
	} {
		_, err := serving.Exec(t.Context(), statement)
		testenv.Same(t, testenv.As[*pgconn.PgError](t, err, "%s", statement).Code, "42501", "the role that serves gets")
	}
}

const unsentLogIn = "Content-Type: application/json\r\nContent-Length: 100"

// PROOF: who may do what, 19.
// A caller who may not log in gets the refusal before sending a token, and others are not waited for as long as other
// senders are.
func TestLoginsAreNotWaitedFor(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	b.LockedWith(api.Config{}, access.Config{Throttle: access.ThrottleConfig{Burst: 1, Every: time.Hour}})
	b.Server.LetStall(time.Hour) // other senders are waited for that long
	first, second := b.Stalled("/session", unsentLogIn, `{"tok`), b.Stalled("/session", unsentLogIn, "")
	codes := map[int]bool{}
	for _, conn := range []net.Conn{second, first} {
		answer := b.Answered(conn)
		codes[answer.StatusCode] = true
		if answer.StatusCode == http.StatusTooManyRequests && answer.Header.Get("Retry-After") == "" {
			t.Errorf("it is answered %v", answer.Header)
		}
	}
	if !codes[http.StatusTooManyRequests] || !codes[http.StatusRequestTimeout] {
		t.Errorf("two logins of which nothing comes are answered %v; want 429 and 408", codes)
	}
	large := `{"token":"` + strings.Repeat("x", 5000) + `"}`
	b.LockedWith(api.Config{}, access.Config{})
	answer := b.Send(http.MethodPost, api.Prefix+"/session", large, "Content-Type", "application/json")
	testenv.Same(t, answer.StatusCode, http.StatusRequestEntityTooLarge, "a large login is answered")
}

// PROOF: who may do what, 19.
// Of requests of whom no one knows who makes them, an address has a few in progress. That bounds neither those of other
// addresses, nor those of who has a token.
func TestStrangersAreBounded(t *testing.T) {
	t.Parallel()
	b := apitest.Setup(t)
	many := access.ThrottleConfig{Burst: 1000, TotalBurst: 1000}
	b.LockedWith(api.Config{TrustedProxies: []netip.Prefix{apitest.Loopback}}, access.Config{Throttle: many})
	const most = 4
	b.Server.LetStrangers(most)
	from := func(address string) string { return unsentLogIn + "\r\nX-Forwarded-For: " + address }
	var stalled []net.Conn
	stall := func() { stalled = append(stalled, b.Stalled("/session", from("192.0.2.1"), "")) }
	for range most {
		stall()
	}
	ask := func(path, address string, header ...string) *apitest.Head {
		return b.Send(http.MethodGet, path, "", append(header, "X-Forwarded-For", address)...)
	}
	full := ask("/", "192.0.2.1")
	apitest.Eventually(t, "no more logins may be in progress", func() bool {
		if full.StatusCode != http.StatusTooManyRequests {
			stall() // on a machine that was stalled the first of them have been abandoned
			full = ask("/", "192.0.2.1")
		}
		return full.StatusCode == http.StatusTooManyRequests
	})
	if full.Header.Get("Retry-After") == "" {
		t.Errorf("who is one too many is answered %v", full.Header)
	}
	if answer := b.Answered(b.Stalled("/runs", from("192.0.2.1"), "")); answer.StatusCode != http.StatusUnauthorized {
		t.Errorf("a start by no one is answered %d", answer.StatusCode) // and the rest of it is not waited for
	}
	testenv.Same(t, ask("/", "192.0.2.2").StatusCode, http.StatusNotFound, "from another address")
	for _, probe := range []string{"/healthz", "/readyz"} {
		// In /readyz PostgreSQL has little time to answer.
		if answer := ask(probe, "192.0.2.1"); answer.StatusCode != http.StatusOK &&
			(probe == "/healthz" || answer.StatusCode != http.StatusServiceUnavailable) {
			t.Errorf("who looks at %s from there is answered %d", probe, answer.StatusCode)
		}
	}
	token := "Bearer " + b.Token("ann", access.Viewer, 0).Secret
	testenv.Same(t, ask(api.Prefix+"/runs", "192.0.2.1", "Authorization", token).StatusCode, http.StatusOK, "with a token")
	for _, conn := range stalled {
		testenv.NoError(t, conn.Close())
	}
	apitest.Eventually(t, "logins that have gone are not counted", func() bool {
		return ask("/", "192.0.2.1").StatusCode == http.StatusNotFound // this server has no pages
	})
}
