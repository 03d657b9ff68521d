package apitest

import (
	"bufio"
	"cmp"
	"context"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"github.com/tranchehq/tranche/internal/access"
	"github.com/tranchehq/tranche/internal/api"
	"github.com/tranchehq/tranche/internal/api/apicore"
	"github.com/tranchehq/tranche/internal/health"
	"github.com/tranchehq/tranche/internal/testing/testenv"
	"github.com/tranchehq/tranche/workqueue"
	"github.com/tranchehq/tranche/workqueue/identity"
)

type LockedBench struct {
	*Bench
	Log *observer.ObservedLogs
}

func (b *Bench) Locked() *LockedBench {
	b.Helper()
	return b.LockedWith(api.Config{}, access.Config{})
}

// LockedWith is Locked with given settings.
func (b *Bench) LockedWith(config api.Config, how access.Config) *LockedBench {
	b.Helper()
	core, seen := observer.New(zap.DebugLevel)
	how.Log, config.Log = zap.New(core), zap.New(core)
	how.UnknownBurst = cmp.Or(how.UnknownBurst, 100_000) // most tests exceed the default
	gate := testenv.Must(access.New(identity.New(b.Store), how))(b)
	config.Access, config.Alerts = gate, tellers(b.T)
	if config.Metrics == nil {
		config.Metrics = NewMeasured()
	}
	b.Gated = true
	b.Over(NodeOf(b.Engine), testenv.Conn(b, testenv.NATS(b)), config)
	return &LockedBench{b, seen}
}

type MadeToken struct {
	identity.TokenView
	Secret string
}

// Token makes a token without the API. A negative life makes an expired one.
func (b *Bench) Token(name string, role access.Role, life time.Duration) MadeToken {
	b.Helper()
	secret := access.NewSecret()
	made := testenv.Must(identity.New(b.Store).CreateToken(b.Context(), identity.NewToken{
		Name: name, Role: string(role), Hash: access.HashOf(secret), ExpiresIn: max(life, 0),
	}, "the test"))(b)
	if life < 0 {
		testenv.Must(b.Pool.Exec(b.Context(), `UPDATE api_token SET expires_at = tranche_now() - interval '1 minute'
			WHERE id = $1`, made.ID))(b)
	}
	return MadeToken{made, secret}
}

type Browser struct{ Cookie *http.Cookie }

func (w Browser) Headers() []string { return []string{"Cookie", w.Cookie.Name + "=" + w.Cookie.Value} }

// LogIn logs a browser in with the secret of a token.
func (b *Bench) LogIn(secret string) Browser {
	b.Helper()
	answer := b.Send(http.MethodPost, api.Prefix+"/session", `{"token":"`+secret+`"}`, "Content-Type", "application/json")
	if answer.StatusCode != http.StatusOK || len(answer.Cookies()) != 1 {
		b.Fatalf("the login was answered with %d and %v", answer.StatusCode, answer.Cookies())
	}
	return Browser{answer.Cookies()[0]}
}

func (b *Bench) Session(header ...string) (doc api.SessionDocument) {
	b.Helper()
	b.JSON(http.MethodGet, "/session", "", http.StatusOK, &doc, header...)
	return doc
}

// OpenStream opens a stream of events, and sends the time at which it ends.
func (b *Bench) OpenStream(at string, header ...string) (opened bool, ended <-chan time.Time) {
	b.Helper()
	at += api.Prefix + "/runs/it/events"
	answer := exchange(b.Context(), b, http.MethodGet, at, nil, header...) //nolint:bodyclose // at its end
	if answer.StatusCode != http.StatusOK {
		b.Logf("%s answers %s", at, answer.Status)
		_ = answer.Body.Close()
		return false, nil
	}
	lines := bufio.NewReader(answer.Body)
	if _, err := lines.ReadString('\n'); err != nil { // the first event
		b.Fatal(err)
	}
	end := make(chan time.Time, 1)
	go func() {
		defer func() { _ = answer.Body.Close() }()
		_, _ = io.Copy(io.Discard, lines)
		end <- time.Now()
	}()
	return true, end
}

// Measured passes on what it measures, without blocking.
type Measured struct{ Requests chan string }

func NewMeasured() *Measured { return &Measured{make(chan string, 100)} }

func (*Measured) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	_, _ = w.Write([]byte("tranche_up 1\n"))
}

func (*Measured) Watch(*health.Watch, func(context.Context) map[string]bool) {}

func (m *Measured) Asked(route, role string, code int) {
	select {
	case m.Requests <- route + " " + role + " " + strconv.Itoa(code):
	default:
	}
}

// Identified makes people log in at a provider, and programs with a token.
func (b *Bench) Identified(p *Provider, config access.OIDCConfig) *LockedBench {
	b.Helper()
	many := access.ThrottleConfig{Burst: 1000, TotalBurst: 1000}
	return b.IdentifiedWith(p, config, access.Config{Throttle: many})
}

// IdentifiedWith is Identified with given access settings.
func (b *Bench) IdentifiedWith(p *Provider, config access.OIDCConfig, how access.Config) *LockedBench {
	b.Helper()
	config.Issuer, config.ClientID, config.ClientSecret = p.URL, "tranche", "s3cret"
	config.RedirectURL = "https://tranche.example.com" + apicore.OIDCCallback
	login := testenv.Must(access.NewOIDC(config))(b)
	b.Oidc = login
	return b.LockedWith(api.Config{OIDC: login}, how)
}

// CookieOf returns a cookie that an answer sets, by its name's prefix.
func CookieOf(h *Head, name string) []string {
	for _, c := range h.Cookies() {
		if strings.HasPrefix(c.Name, name) && c.Value != "" {
			return []string{"Cookie", c.Name + "=" + c.Value}
		}
	}
	return nil
}

// Begin begins a login, and returns where the provider redirects after consent, and the cookie.
func (b *Bench) Begin(p *Provider, next string) (back string, cookie []string) {
	b.Helper()
	return b.BeginIn(nil, p, next)
}

// BeginIn is Begin in a browser with other logins in progress, whose cookies it keeps.
func (b *Bench) BeginIn(has *[]*http.Cookie, p *Provider, next string) (back string, cookie []string) {
	b.Helper()
	page := b.Send(http.MethodGet, apicore.OIDCLogin+"?next="+url.QueryEscape(next), "", SentBy(has)...)
	Keep(has, page)
	to := page.Header.Get("Location")
	cookie = CookieOf(page, "tranche_login")
	if page.StatusCode != http.StatusSeeOther || !strings.HasPrefix(to, p.URL+"/authorize?") || cookie == nil {
		b.Fatalf("a login begins with %d, %s, %v", page.StatusCode, to, page.Cookies())
	}
	code, state := p.agree(to)
	return apicore.OIDCCallback + "?" + url.Values{"code": {code}, "state": {state}}.Encode(), cookie
}

func SentBy(has *[]*http.Cookie) []string {
	var texts []string
	if has != nil {
		for _, c := range *has {
			texts = append(texts, c.Name+"="+c.Value)
		}
	}
	return []string{"Cookie", strings.Join(texts, "; ")}
}

// Keep applies an answer's cookies to those of a browser.
func Keep(has *[]*http.Cookie, answer *Head) {
	if has == nil {
		return
	}
	for _, c := range answer.Cookies() {
		*has = slices.DeleteFunc(*has, func(old *http.Cookie) bool { return old.Name == c.Name })
		if c.MaxAge >= 0 {
			*has = append(*has, c)
		}
	}
}

func (b *Bench) LogInBy(p *Provider) []string {
	b.Helper()
	back, cookie := b.Begin(p, "/")
	answer := b.Send(http.MethodGet, back, "", cookie...)
	browser := CookieOf(answer, "tranche_session")
	if browser == nil {
		b.Fatalf("the login is answered %d", answer.StatusCode)
	}
	return browser
}

// Renew runs the leader task once.
func (b *Bench) Renew() {
	b.Helper()
	renewer := testenv.Must(access.NewRenewer(b.Oidc, identity.New(b.Store), nil))(b)
	if _, err := renewer.Run(b.Context(), workqueue.Lease{}); err != nil {
		b.Logf("renewing: %v", err)
	}
}
